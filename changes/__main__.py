"""``python -m changes [VERSION DATE]``: print the news, or make the sources those of a version.

That is: put the news into CHANGELOG.md, remove their files, and write the number wherever it stands.
"""

import argparse
import sys

from changes.news import NewsError, assemble, collect, release
from changes.version_number import renumbered


def main() -> int:
    """Return the exit code: 2 where a file is not news."""
    parser = argparse.ArgumentParser(prog="python -m changes", description=__doc__)
    parser.add_argument("version", nargs="?", help="the version that is released, as 0.2.0")
    parser.add_argument("date", nargs="?", help="the day of the release, as 2026-01-31")
    parser.add_argument("--check", action="store_true", help="only look whether every file is news")
    options = parser.parse_args()
    try:
        news = collect()
    except NewsError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if options.check:
        return 0
    if not options.version:
        sys.stdout.write(assemble(news))
        return 0
    if not options.date:
        parser.error("name the day of the release too")
    try:
        texts = renumbered(options.version)
        release(news, options.version, options.date)
    except NewsError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
