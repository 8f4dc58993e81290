"""Provides the files that the browser gets, from the package; nothing is loaded from elsewhere."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file and its media type."""

    body: bytes
    media_type: str


def assets() -> dict[str, Asset]:
    """Return the files by their names."""
    found = {}
    for each in files("gputile.tools.web").joinpath("static").iterdir():
        kind = _TYPES.get(f".{each.name.rpartition('.')[2]}")
        if kind is not None:
            found[each.name] = Asset(each.read_bytes(), kind)
    return found
