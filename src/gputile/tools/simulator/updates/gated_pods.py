"""Judges and applies what can change of a Pod that has no node yet.

While a Pod has scheduling gates, its nodeSelector and its required node affinity can be narrowed, and its gates can be
taken away (k8s.io/kubernetes, pkg/apis/core/validation, ``ValidatePodUpdate``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gputile.api.core import Pod
from gputile.tools.simulator.updates.differences import Path, last_applied

Json = Mapping[str, Any]
_TERMS = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def narrows(path: Path, written: Json, stored: Json) -> bool:
    """Return whether the change at ``path`` of a Pod only keeps it off more nodes while it is gated."""
    new, old = written.get("spec", {}), stored.get("spec", {})
    if not old.get("schedulingGates"):
        return False
    if path[1] == "nodeSelector":
        had = old.get("nodeSelector", {})
        return path[2] not in had if len(path) > 2 else not had
    if path[1] != "affinity" or path[2:3] not in ((), _TERMS[:1]) or (len(path) == 2 and _beside(new)):
        return False
    before, after = _terms(old), _terms(new)
    return before is None or (after is not None and len(before) == len(after) and all(map(_is_within, after, before)))


def applied(live: Pod, asked: Pod) -> Pod:
    """Return a Pod of the cluster, which has no node yet, with what its manifest changes.

    A gate that nobody wrote stays: webhooks and controllers add gates, and take them away themselves.
    """
    metadata = {"metadata": {"annotations": live.metadata.annotations}}
    before = last_applied(metadata).get("spec")
    had = before.get("schedulingGates") if isinstance(before, dict) else None
    written = {each.get("name") for each in had if isinstance(each, dict)} if isinstance(had, list) else set()
    kept = {each.name for each in asked.spec.scheduling_gates}
    gates = tuple(each for each in live.spec.scheduling_gates if each.name in kept or each.name not in written)
    spec = msgspec.structs.replace(
        live.spec,
        scheduling_gates=gates,
        node_selector={**live.spec.node_selector, **asked.spec.node_selector},
        affinity=asked.spec.affinity or live.spec.affinity,
        tolerations=_joined(live.spec.tolerations, asked.spec.tolerations),
    )
    return msgspec.structs.replace(live, spec=spec)


def _joined(first: Iterable[Any], more: Iterable[Any]) -> tuple[Any, ...]:
    found = list(first)
    return (*found, *(each for each in more if each not in found))


def _terms(spec: Json) -> list[Any] | None:
    """Return the terms of the required node affinity, None where there is none."""
    found: Any = spec.get("affinity")
    for step in _TERMS:
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, list) else None


def _beside(spec: Json) -> Json:
    """Return the parts of an affinity that cannot change."""
    affinity = spec.get("affinity") or {}
    return {key: value for key, value in affinity.items() if key != _TERMS[0] and value}


def _is_within(after: Json, before: Json) -> bool:
    """Return whether a term asks for all that it asked for before."""
    if not any(before.values()):
        return not any(after.values())  # it selects no node, and stays so
    return all(
        each in (after.get(kind) or ())
        for kind in ("matchExpressions", "matchFields")
        for each in before.get(kind) or ()
    )
