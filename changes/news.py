"""Files of news: ``NAME.KIND.md`` with a sentence or two for users."""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
CHANGELOG = FOLDER.parent / "CHANGELOG.md"
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}
_UNRELEASED = "## Unreleased\n"
_VERSION = "\n## "
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.(?P<kind>[a-z]+)\.md")
_LONGEST = 600
_COLUMNS = 124
_KEPT = "\x00"  # stands for a space at which no line ends


class NewsError(ValueError):
    """A file is not news; the text says what is wrong with it."""


class NewsItem(NamedTuple):
    """What one file says: its path, kind and text."""

    path: Path
    kind: str
    text: str


def collect(folder: Path = FOLDER) -> list[NewsItem]:
    """Return the news of a folder, by kind and name.

    Raises:
        NewsError: a file has another name, or is empty, too long, or has headings.
    """
    found = []
    for path in sorted(folder.glob("*.md")):
        match = _NAME.fullmatch(path.name)
        if match is None or match["kind"] not in KINDS:
            raise NewsError(f"{path.name}: the name is NAME.KIND.md, and KIND one of {', '.join(KINDS)}")
        text = " ".join(path.read_text(encoding="utf-8").split())
        if not text or len(text) > _LONGEST or text.startswith(("#", "-")):
            raise NewsError(f"{path.name}: write 1 to {_LONGEST} characters, without a heading or a dash")
        found.append(NewsItem(path, match["kind"], text))
    return sorted(found, key=lambda item: ([*KINDS].index(item.kind), item.path.name))


def assemble(news: Sequence[NewsItem]) -> str:
    """Return the news as a part of the changelog: a heading for each kind, a line for each file."""
    parts = []
    for kind, title in KINDS.items():
        lines = [_entry(item.text) for item in news if item.kind == kind]
        if lines:
            parts.append("\n".join([f"### {title}", "", *lines, ""]))
    return "\n".join(parts)


def _entry(text: str) -> str:
    """Return a text as an entry of a list, in lines of at most ``_COLUMNS``; none begins what Markdown reads anew."""
    words = re.sub(r" (?=[-+*#>]+ |\d+[.)] )", _KEPT, text)
    wrapped = textwrap.fill(
        f"- {words}", _COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return wrapped.replace(_KEPT, " ")


def notes_of(version: str, changelog: Path = CHANGELOG, since: Sequence[NewsItem] = ()) -> str:
    """Return what the changelog says of a version, under a heading of its own: a release's notes.

    What the sources have ``since`` then, and no version has yet, follows.

    Raises:
        NewsError: it says nothing.
    """
    for part in changelog.read_text(encoding="utf-8").split(_VERSION)[1:]:
        heading, _, text = part.partition("\n")
        if heading.partition(" ")[0] == version and text.strip():
            more = f"\n## Since then, in no version yet\n\n{assemble(since).strip()}\n" if since else ""
            return f"# gputile {heading}\n\n{text.strip()}\n{more}"
    raise NewsError(
        f"{changelog.name} says nothing of {version}: put the news under it by make version VERSION={version}"
    )


def release(news: Sequence[NewsItem], version: str, date: str, changelog: Path = CHANGELOG) -> None:
    """Put what stands under Unreleased, as notes on the upgrade, and then the news under a version; remove their files.

    Raises:
        NewsError: the changelog has no part for what is not released.
    """
    text = changelog.read_text(encoding="utf-8")
    before, found, after = text.partition(_UNRELEASED)
    if not found:
        raise NewsError(f"{changelog.name} has no heading {_UNRELEASED.strip()!r}")
    notes, _, earlier = after.partition(_VERSION)
    parts = [f"{before}{_UNRELEASED}", f"## {version} ({date})\n", notes.strip("\n"), assemble(news)]
    parts += [f"{_VERSION}{earlier}"] if earlier else []
    changelog.write_text("\n\n".join(part.strip("\n") for part in parts if part) + "\n", encoding="utf-8")
    for item in news:
        item.path.unlink()
