"""Decides when a GPU becomes unhealthy, and when it is healthy again (B6).

``nvml_probe`` reports signs of health: XIDs, which are the driver's error codes, and results of
examinations. A definite fault makes a GPU unhealthy at once. A suspected fault makes a GPU
unhealthy only if two examinations in a row find a fault. The GPU becomes healthy again after a
quiet time without faults and several good examinations in a row. The quiet time doubles if the GPU
fails again soon. This module does no I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

# XIDs that applications cause. NVIDIA's device plugin ignores the same XIDs.
APPLICATION_XIDS = frozenset(
    (
        13,  # graphics engine exception
        31,  # GPU memory page fault
        43,  # GPU stopped processing
        45,  # preemptive cleanup, due to previous errors
        68,  # video processor exception
        109,  # context switch timeout
    )
)
SUSPICIONS_UNTIL_UNHEALTHY = 2  # examinations in a row with a suspected fault
GOOD_UNTIL_HEALTHY = 3  # good examinations in a row that make a GPU healthy again
FIRST_QUIET_S = 60.0
LONGEST_QUIET_S = 3600.0
FORGIVEN_AFTER_S = 3600.0  # after this time in good health, the quiet time is FIRST_QUIET_S again


@dataclass(frozen=True, slots=True)
class XidSeen:
    """The driver reported XID ``code`` on the GPU or MIG instance ``uuid``."""

    uuid: str
    code: int


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of examining the GPU or MIG instance ``uuid``.

    ``fault`` describes a fault, or is None if the GPU is healthy. A ``suspected`` fault may be
    transient, such as a call that timed out. Any other fault is definite, such as a lost GPU.
    """

    uuid: str
    fault: str | None = None
    suspected: bool = False


Sign = XidSeen | Examined


@dataclass(frozen=True, slots=True)
class HealthState:
    """The health of one GPU. Times are seconds on the caller's monotonic clock."""

    healthy: bool = True
    reason: str = ""
    suspicions: int = 0  # examinations in a row with a fault
    good: int = 0  # good examinations in a row of an unhealthy GPU
    last_fault_at_s: float = 0.0
    recovered_at_s: float | None = None  # when the GPU last became healthy again
    quiet_s: float = FIRST_QUIET_S  # the time without faults that recovery requires


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a machine's GPUs and MIG instances, by UUID.

    A GPU without an entry in ``conditions`` is healthy and was never unhealthy.
    """

    conditions: Mapping[str, HealthState] = field(default_factory=lambda: MappingProxyType({}))

    def healthy(self, uuid: str) -> bool:
        return self.conditions.get(uuid, HEALTHY).healthy

    @property
    def reasons(self) -> dict[str, str]:
        """The reason why each unhealthy GPU or MIG instance is unhealthy, by UUID."""
        return {
            uuid: condition.reason
            for uuid, condition in self.conditions.items()
            if not condition.healthy
        }

    def after(self, signs: Iterable[Sign], now_s: float) -> "Health":
        """Return the health after applying the ``signs`` in order at the time ``now_s``."""
        conditions = dict(self.conditions)
        for sign in signs:
            condition = _step(conditions.pop(sign.uuid, HEALTHY), sign, now_s)
            if condition != HEALTHY:
                conditions[sign.uuid] = condition
        return Health(MappingProxyType(conditions)) if conditions != self.conditions else self

    def without(self, gone: Iterable[str]) -> "Health":
        """Return the health without the UUIDs in ``gone``, such as those of removed instances."""
        left = set(gone)
        conditions = {u: state for u, state in self.conditions.items() if u not in left}
        return Health(MappingProxyType(conditions))


HEALTHY = HealthState()


def initial_health(unhealthy: Iterable[str], now_s: float) -> Health:
    """Return the initial health. ``unhealthy`` GPUs were unhealthy when the agent started."""
    begin = HealthState(
        healthy=False, reason="was unhealthy when the agent started", last_fault_at_s=now_s
    )
    return Health(MappingProxyType(dict.fromkeys(unhealthy, begin)))


def _step(condition: HealthState, sign: Sign, now_s: float) -> HealthState:
    if isinstance(sign, XidSeen):
        return (
            condition
            if sign.code in APPLICATION_XIDS
            else _unhealthy(condition, f"XID {sign.code}", now_s)
        )
    if sign.fault is not None:
        suspicions = condition.suspicions + 1
        if sign.suspected and condition.healthy and suspicions < SUSPICIONS_UNTIL_UNHEALTHY:
            return replace(condition, suspicions=suspicions)
        return _unhealthy(replace(condition, suspicions=suspicions), sign.fault, now_s)
    if condition.healthy:
        return replace(condition, suspicions=0) if condition.suspicions else condition
    good = condition.good + 1
    if good >= GOOD_UNTIL_HEALTHY and now_s - condition.last_fault_at_s >= condition.quiet_s:
        return HealthState(recovered_at_s=now_s, quiet_s=condition.quiet_s)
    return replace(condition, good=good, suspicions=0)


def _unhealthy(condition: HealthState, reason: str, now_s: float) -> HealthState:
    quiet_s = condition.quiet_s
    if condition.healthy and condition.recovered_at_s is not None:
        relapsed = now_s - condition.recovered_at_s < FORGIVEN_AFTER_S
        quiet_s = min(2 * quiet_s, LONGEST_QUIET_S) if relapsed else FIRST_QUIET_S
    return replace(
        condition, healthy=False, reason=reason, good=0, last_fault_at_s=now_s, quiet_s=quiet_s
    )
