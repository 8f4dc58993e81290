"""Follows paths in objects: names behind dots, and "*" for each entry of a list or mapping."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gputile.api.wording import nearest, shown

Step = str | int
EACH: Final = "*"
_KEYS: Final = ("name", "groupName")  # the field that names an entry of a list


@dataclass(frozen=True, slots=True)
class FieldAt:
    """What stands at a path: the steps to it, those that "*" stood for, and what the last such entry is called."""

    steps: tuple[Step, ...]
    keys: tuple[Step, ...]
    name: str
    value: Any


def places_at(body: Any, path: str) -> Iterator[FieldAt]:
    """Yield what stands at a path, "" for nowhere."""
    if path:
        yield from _walk(FieldAt((), (), "", body), path.split("."))


def _walk(place: FieldAt, path: Sequence[str]) -> Iterator[FieldAt]:
    value = place.value
    if not path:
        if value is not None:
            yield place
    elif path[0] == EACH:
        for key, item in entries(value):
            yield from _walk(FieldAt((*place.steps, key), (*place.keys, key), _called(key, item), item), path[1:])
    elif isinstance(value, dict):
        yield from _walk(FieldAt((*place.steps, path[0]), place.keys, place.name, value.get(path[0])), path[1:])


def entries(value: Any) -> Iterable[tuple[Step, Any]]:
    """Return the entries of a list or mapping, with their numbers or keys."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _called(key: Step, entry: Any) -> str:
    """Return what an entry is called: its key in small letters, in a list its name, or its number if it has none."""
    if isinstance(key, str):
        return key.lower()
    names: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    return next((names[each] for each in _KEYS if isinstance(names.get(each), str)), str(key))


def bound(body: Any, path: str, keys: Sequence[Step]) -> tuple[Any, str]:
    """Return what stands at a path whose "*" are ``keys``, None where nothing does; and the path."""
    rest, steps, value = list(keys), list[Step](), body
    for name in path.split("."):
        step = rest.pop(0) if name == EACH and rest else name
        steps.append(step)
        if isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value, written(steps)


def missing(body: Any, path: str, whole: str) -> tuple[str, str]:
    """Return the last part of ``path`` that exists in ``body``, and why the next step of the ``whole`` path fails."""
    value, steps = body, list[Step]()
    for name in path.split("."):
        if name == EACH or not isinstance(value, dict) or name not in value:
            break
        steps.append(name)
        value = value[name]
    lacking = path.split(".")[len(steps)]
    where = written(steps)
    there = value if isinstance(value, dict) and lacking != EACH else ()
    similar = next((shown(name)[1:-1] for name in there if nearest(name, [lacking])), "")
    hint = f"; there is {similar}: did you mean {lacking}?" if similar else ""
    what = "an entry" if lacking == EACH else lacking
    return where, f"there is no template of pods: {what} is missing (it stands at {whole}){hint}"


def written(steps: Iterable[Step]) -> str:
    """Return steps as messages show them: ``spec.tasks[0]``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
