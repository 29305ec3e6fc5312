"""Faultline and a naive queue under the same faults, as `make report` draws it."""

from __future__ import annotations

from faultline.errors import FaultlineError
from proofs.comparison import RESULT
from proofs.pictures.album import Album
from proofs.report.__main__ import FOLDER, write


def picture_comparison(album: Album) -> None:
    """From what `make comparison` has left."""
    if not RESULT.exists():
        raise FaultlineError("there is no comparison yet: run `make comparison` first")
    write(FOLDER)
    album.shown.goto((FOLDER / "report.html").absolute().as_uri())
    section = album.shown.locator("section", has=album.shown.get_by_text("naive")).first
    # That it was made by an earlier commit than the picture is true of every committed picture.
    section.locator(".caution").evaluate_all("found => found.forEach((one) => one.remove())")
    album.keep("comparison", part=section)
