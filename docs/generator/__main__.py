"""``python -m docs.generator``: bring every generated block up to date."""

import sys

from docs.generator import schemas
from docs.generator.pages import DOCS, outdated, rewrite
from docs.generator.pictures import PICTURES

if __name__ == "__main__":
    for page in outdated():
        rewrite(page)
        sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")
    schemas.rewrite()
    for name, draw in PICTURES.items():
        (DOCS / "pictures" / f"{name}.svg").write_text(draw(), encoding="utf-8")
