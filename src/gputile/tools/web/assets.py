"""Provides the files that the browser loads, out of the package: nothing comes from other hosts."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import msgspec

from gputile.tools.web.records import PageAnswer

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    body: bytes
    media_type: str


def assets() -> dict[str, Asset]:
    found = {}
    for each in files("gputile.tools.web").joinpath("static").iterdir():
        kind = _TYPES.get(f".{each.name.rpartition('.')[2]}")
        if kind is not None:
            found[each.name] = Asset(each.read_bytes(), kind)
    return found


_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)
_LINKS: Final = re.compile(r'^<(?:link|script)\b[^\n]*"/(?:static|api)/[^\n]*\n', re.MULTILINE)


def html_file(page: PageAnswer) -> str:
    """Return the page with this state as one HTML file; its content policy forbids loading anything."""
    files = assets()
    style, script = files["page.css"].body.decode(), one_script(files)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
    # "<" is the only character with which data could end its element.
    data = msgspec.json.encode(page).decode().replace("<", "\\u003c")
    tail = (
        f'<script type="application/json" id="gputile-data">{data}</script>\n<script type="module">{script}</script>\n'
    )
    text = _LINKS.sub("", files["page.html"].body.decode())
    return text.replace("</head>", f"{head}</head>").replace("</body>", f"{tail}</body>")


def one_script(files: Mapping[str, Asset], first: str = "main.js") -> str:
    """Return a module and all of its imports as one script, each module before those that import it.

    A test checks that no two modules define the same top-level name.
    """
    order: list[str] = []

    def take(name: str) -> None:
        if name in order:
            return
        for other in _IMPORT.findall(files[name].body.decode()):
            take(other)
        order.append(name)

    take(first)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", files[name].body.decode())) for name in order)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
