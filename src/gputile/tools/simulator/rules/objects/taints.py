"""Checks the taints of a node as the API server does."""

from collections.abc import Iterator, Sequence
from typing import Final

from gputile.api.core import Taint
from gputile.api.wording import shown, unsupported
from gputile.tools.simulator.rules.values.fields import Broken
from gputile.tools.simulator.rules.values.names import broken_label_value, broken_qualified_name

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def broken_taints(path: str, taints: Sequence[Taint]) -> Iterator[Broken]:
    """Yield what is wrong with the taints at ``path``."""
    seen = set[tuple[str, str]]()
    for i, taint in enumerate(taints):
        where = f"{path}[{i}]"
        if why := broken_qualified_name(taint.key) if taint.key else "Required value":
            yield f"{where}.key", why
        if why := broken_label_value(taint.value):
            yield f"{where}.value", why
        if taint.effect not in EFFECTS:
            yield f"{where}.effect", unsupported(taint.effect, EFFECTS) if taint.effect else "Required value"
        if (taint.key, taint.effect) in seen:
            yield where, f"Duplicate value: {shown(taint.key)}: taints must be unique by key and effect pair"
        seen.add((taint.key, taint.effect))
