"""Runs ``python -m docs.generator``, which updates every generated block."""

import sys

from docs.generator import schemas
from docs.generator.pages import DOCS, outdated, rewrite
from docs.generator.screenshot import PICTURE, screenshot

if __name__ == "__main__":
    for page in outdated():
        rewrite(page)
        sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")
    schemas.rewrite()
    PICTURE.write_text(screenshot(), encoding="utf-8")
