"""``python -m docs.generator``: bring every generated block up to date."""

import sys

from docs.generator.pages import outdated, rewrite

if __name__ == "__main__":
    for page in outdated():
        rewrite(page)
        sys.stdout.write(f"{page.relative_to(page.parents[2])}\n")
