"""Checks tolerations as the API server does, where they stand in a pod and elsewhere."""

from collections.abc import Iterator, Sequence
from typing import Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken, Json

_OPERATORS: Final = ("Equal", "Exists", "")
_EFFECTS: Final = ("NoExecute", "NoSchedule", "PreferNoSchedule", "")


def broken_toleration_times(path: str, tolerations: Sequence[Json]) -> Iterator[Broken]:
    """Yield what is wrong with the times of a pod's tolerations; the core judges operators and effects."""
    for i, toleration in enumerate(tolerations):
        if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
            rule = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield f"{path}[{i}].effect", f"Invalid value: {shown(toleration.get('effect', ''))}: {rule}"


def broken_tolerations(path: str, tolerations: Sequence[Json]) -> Iterator[Broken]:
    """Yield all that is wrong with tolerations that stand outside of a pod's spec."""
    yield from broken_toleration_times(path, tolerations)
    for i, toleration in enumerate(tolerations):
        operator, effect = toleration.get("operator", ""), toleration.get("effect", "")
        where = f"{path}[{i}].operator"
        if operator not in _OPERATORS:
            yield where, f'Unsupported value: {shown(operator)}: supported values: "Equal", "Exists"'
        elif not toleration.get("key") and operator != "Exists":
            yield where, f"Invalid value: {shown(operator)}: must be Exists where there is no key"
        elif operator == "Exists" and toleration.get("value"):
            yield where, f"Invalid value: {shown(toleration['value'])}: value must be empty where operator is Exists"
        if effect not in _EFFECTS:
            valid = ", ".join(map(shown, _EFFECTS[:-1]))
            yield f"{path}[{i}].effect", f"Unsupported value: {shown(effect)}: supported values: {valid}"
