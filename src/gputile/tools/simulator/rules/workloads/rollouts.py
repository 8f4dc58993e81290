"""Checks how workloads replace their pods as the API server does."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.numbers import broken_share, is_no_share, percentage

_DEADLINE: Final = 600  # seconds that a rollout may take, where none is named
_TOO_MANY: Final = 2**63
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_REVISIONS: Final = {
    "DaemonSet": ("deprecated.daemonset.template.generation", _NUMBER),
    "Deployment": ("deprecated.deployment.rollback.to", re.compile(r"(\+?[0-9]{1,18})?", re.ASCII)),
}


def broken_revision(kind: str, annotations: Mapping[str, str]) -> Iterator[Broken]:
    """Yield what is wrong with the annotation in which a workload of ``kind`` keeps a number of an older version."""
    name, pattern = _REVISIONS.get(kind, ("", _NUMBER))
    written = annotations.get(name)
    if written is not None and not pattern.fullmatch(written):
        yield f"metadata.annotations[{shown(name)}]", f"Invalid value: {shown(written)}: must be a whole number"


def broken_deployment_rollout(spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with a Deployment's strategy and deadline."""
    strategy = spec.get("strategy", {})
    rolling = strategy.get("rollingUpdate")
    where = "spec.strategy.rollingUpdate"
    if strategy.get("type") == "Recreate" and rolling is not None:
        yield where, "Forbidden: may not be specified when strategy `type` is 'Recreate'"
    elif rolling is not None:
        yield from _shares(where, rolling, {"maxSurge": False, "maxUnavailable": True})
        if all(is_no_share(rolling.get(each, 1)) for each in ("maxSurge", "maxUnavailable")):
            yield f"{where}.maxUnavailable", "Invalid value: 0: may not be 0 when `maxSurge` is 0"
        if not _is_counted(surge := rolling.get("maxSurge", 0), spec.get("replicas", 1)):
            rule = "the API server takes it, and the Deployment never makes a pod: with replicas it exceeds 32 bits"
            yield f"{where}.maxSurge", f"Invalid value: {shown(str(surge))}: {rule}"
    deadline = spec.get("progressDeadlineSeconds", _DEADLINE)
    if 0 <= deadline <= spec.get("minReadySeconds", 0):
        yield "spec.progressDeadlineSeconds", f"Invalid value: {deadline}: must be greater than minReadySeconds"


def _is_counted(surge: int | str, replicas: int) -> bool:
    """Return whether a Deployment's controller makes pods with this ``maxSurge``, of a right form.

    It reckons percentages in 64 bits, and all pods there may be in 32 (pkg/controller/deployment/util of Kubernetes,
    ``NewRSNewReplicas``): what has no room there turns negative.
    """
    if isinstance(surge, str):
        percent = percentage(surge)
        if percent is None:
            return True  # which is told otherwise
        if percent >= _TOO_MANY:
            return False
        surge = math.ceil(float(percent) * replicas / 100)
    return replicas <= 0 or _in_32_bits(replicas + _in_32_bits(surge if surge < _TOO_MANY else 0)) > 0


def _in_32_bits(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def broken_daemon_set_rollout(spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with a DaemonSet's update strategy."""
    strategy = spec.get("updateStrategy", {})
    rolling = strategy.get("rollingUpdate")
    if rolling is None or strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return
    where = "spec.updateStrategy.rollingUpdate"
    yield from _shares(where, rolling, {"maxSurge": True, "maxUnavailable": True})
    surge, unavailable = rolling.get("maxSurge", 0), rolling.get("maxUnavailable", 1)
    if is_no_share(surge) and is_no_share(unavailable):
        yield f"{where}.maxUnavailable", "Invalid value: 0: cannot be 0 when maxSurge is 0"
    elif not is_no_share(surge) and not is_no_share(unavailable):
        rule = "may not be set when maxUnavailable is not 0, which it is where it is not set"
        yield f"{where}.maxSurge", f"Invalid value: {surge}: {rule}"


def broken_stateful_set_rollout(spec: Json) -> Iterator[Broken]:
    """Yield what is wrong with a StatefulSet's update strategy."""
    strategy = spec.get("updateStrategy", {})
    where = "spec.updateStrategy.rollingUpdate"
    if strategy.get("type") == "OnDelete" and "rollingUpdate" in strategy:
        yield where, "Invalid value: only allowed for updateStrategy 'RollingUpdate'"
    rolling = strategy.get("rollingUpdate", {})
    if strategy.get("type") != "OnDelete" and "maxUnavailable" in rolling:
        yield from _shares(where, rolling, {"maxUnavailable": True})
        if is_no_share(rolling["maxUnavailable"]):
            yield f"{where}.maxUnavailable", "Invalid value: 0: cannot be 0"


def _shares(path: str, rolling: Json, fields: Mapping[str, bool]) -> Iterator[Broken]:
    for field, at_most_all in fields.items():
        if field in rolling and (why := broken_share(rolling[field], at_most_all=at_most_all)):
            yield f"{path}.{field}", why
