"""Draw them all anew, into docs/pictures."""

from __future__ import annotations

from website.pictures import PICTURES
from website.staging import DOCS

for name, draw in PICTURES.items():
    (DOCS / "pictures" / name).write_text(str(draw()))
