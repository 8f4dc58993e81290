"""Describes what admission says of a pod: refusals with their remedies, and JSON patches (RFC 6902)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from gputile.core.refusal import AdmissionRule, Refusal

MOST_SHOWN: Final = 12
MOST_FOUND: Final = 50  # a pod may have thousands of mistakes; nobody reads them, and looking for them takes time


def message(refusals: Sequence[Refusal[AdmissionRule]]) -> str:
    """Return what the user is told: the first ``MOST_SHOWN`` refusals, and whether there are more."""
    shown = [f"{refusal.text} [{refusal.rule}]" for refusal in refusals[:MOST_SHOWN]]
    if len(refusals) > MOST_SHOWN:
        shown.append("and more")
    return f"gputile: {'; '.join(shown)}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One change. ``path`` holds the names and indices from the root; a last "-" appends to a list."""

    op: Literal["add", "remove", "replace"]
    path: tuple[str | int, ...]
    value: Any = None


def encode_patch(operations: Iterable[Operation]) -> bytes:
    changes: list[dict[str, Any]] = []
    for operation in operations:
        steps = (str(step).replace("~", "~0").replace("/", "~1") for step in operation.path)
        changes.append({"op": operation.op, "path": "".join(f"/{step}" for step in steps)})
        if operation.op != "remove":
            changes[-1]["value"] = operation.value
    return msgspec.json.encode(changes)


def apply_patch(operations: Iterable[Operation], document: Any) -> Any:
    """Return a copy of ``document`` with the operations applied in order.

    Raises:
        LookupError: the document has nothing where an operation needs it.
    """
    for operation in operations:
        document = _applied(operation, operation.path, document)
    return document


def _applied(operation: Operation, path: tuple[str | int, ...], node: Any) -> Any:
    """Return a copy of ``node`` with the change at ``path`` below it; the copy shares all other parts."""
    step, rest = path[0], path[1:]
    if isinstance(node, list | tuple):
        index = len(node) if step == "-" else int(step)
        if rest:
            return [*node[:index], _applied(operation, rest, node[index]), *node[index + 1 :]]
        after = node[index:] if operation.op == "add" else node[index + 1 :]
        return [*node[:index], *([] if operation.op == "remove" else [operation.value]), *after]
    if rest:
        return node | {step: _applied(operation, rest, node[step])}
    if operation.op != "add" and step not in node:
        raise KeyError(step)
    if operation.op == "remove":
        return {key: value for key, value in node.items() if key != step}
    return node | {step: operation.value}
