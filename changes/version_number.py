"""The number of the version, in each file that says it."""

import re
from collections.abc import Mapping
from pathlib import Path

from changes.news import NewsError

ROOT = Path(__file__).resolve().parents[1]
# What stands around the number, by file: nothing else of these files is changed, and each place has to be there.
PLACES: Mapping[str, tuple[str, ...]] = {
    "src/gputile/version.py": ('VERSION = "{}"',),
    "charts/gputile/Chart.yaml": ("\nversion: {}\n", "\nappVersion: {}\n"),
    "Dockerfile": ("/gputile:{} ", 'image.version="{}"'),
    "examples/agent/daemonset.yaml": ("/gputile:{}\n",),
    "docs/guides/install.md": ("/gputile:{} ",),
    "docs/guides/getting-started.md": ("/gputile:{}\n", "/gputile:{} ", "dist/gputile-{}-"),
}
_NUMBER = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_VERSION = re.compile(r'VERSION = "([^"]+)"')


def present(root: Path = ROOT) -> str:
    """Return the version of the sources."""
    (found,) = _VERSION.findall((root / "src/gputile/version.py").read_text(encoding="utf-8"))
    return str(found)


def renumbered(version: str, root: Path = ROOT) -> dict[Path, str]:
    """Return the texts of the files that say the version, as they are of ``version``.

    Raises:
        NewsError: it is no version, or no later one; or a file says another version than the sources.
    """
    before = present(root)
    if _NUMBER.fullmatch(version) is None or _parts(version) <= _parts(before):
        raise NewsError(f"{version}: name a version after {before}, as MAJOR.MINOR.PATCH")
    texts = {}
    for name, places in PLACES.items():
        text = (root / name).read_text(encoding="utf-8")
        for place in places:
            if place.format(before) not in text:
                raise NewsError(f"{name} has no {place.format(before).strip()!r}")
            text = text.replace(place.format(before), place.format(version))
        texts[root / name] = text
    return texts


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
