"""Collects notes on the input: facts that a user should know and that stop nothing."""

from collections.abc import Iterable
from dataclasses import dataclass

from gputile.api.wording import first_of
from gputile.tools.simulator.documents.manifests import Origin

_OBJECTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence, and the object of a file that it is about, if there is one."""

    text: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}" if self.origin is not None else self.text


def told_together(notes: Iterable[Note]) -> list[str]:
    """Return the notes as printed: one sentence for all objects of a file that it is about."""
    alike: dict[tuple[str, str], list[Note]] = {}
    for note in notes:
        alike.setdefault((note.origin.file if note.origin is not None else "", note.text), []).append(note)
    return [str(found[0]) if len(found) == 1 else _of_several(found) for found in alike.values()]


def _of_several(notes: list[Note]) -> str:
    first = notes[0]
    if first.origin is None:
        return first.text
    objects = [f"{note.origin.kind}/{note.origin.name or '(no name)'}" for note in notes if note.origin is not None]
    return f"{first.origin.file}: {first_of(objects, _OBJECTS_SHOWN)}: {first.text}"
