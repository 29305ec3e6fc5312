"""Pictures as they are taken: single ones, and the frames of an animation."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from playwright.sync_api import Locator, Page

CAPTION_HEIGHT = 46
FRAME_MS = 1800


@dataclass
class Album:
    """Pictures as they are taken."""

    folder: Path
    shown: Page
    frames: list[Image] = field(default_factory=list)

    def keep(self, name: str, *, whole: bool = False, part: Locator | None = None) -> None:
        """As docs/screenshots/<name>.png: the screen, the whole page, or a part of it."""
        path = self.folder / "screenshots" / f"{name}.png"
        if part is not None:
            part.screenshot(path=path)
        else:
            self.shown.screenshot(path=path, full_page=whole)

    def frame(self, words: str, times: int = 1) -> None:
        """The screen as it is, with a sentence below, for so many turns of the animation."""
        from PIL import Image, ImageDraw, ImageFont

        screen = Image.open(io.BytesIO(self.shown.screenshot())).convert("RGB")
        size = (screen.width, screen.height + CAPTION_HEIGHT)
        framed = Image.new("RGB", size, "#16202c")
        framed.paste(screen, (0, 0))
        font = ImageFont.load_default(size=20)
        ImageDraw.Draw(framed).text((18, screen.height + 11), words, "#ffffff", font=font)
        self.frames += [framed] * times

    def animate(self) -> None:
        """As docs/gifs/stale_worker.gif."""
        from PIL import Image

        reduced = [frame.quantize(96, dither=Image.Dither.NONE) for frame in self.frames]
        path = self.folder / "gifs" / "stale_worker.gif"
        first, *rest = reduced
        first.save(
            path, save_all=True, append_images=rest, duration=FRAME_MS, loop=0, optimize=True
        )
