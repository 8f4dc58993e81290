"""What became of each pod, as the API server tells it."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.node import ITS_OWN_WORDS, NOBODY_ANSWERED
from tests.soak.system.findings import Findings
from tests.soak.system.judge import Gang
from tests.soak.system.objects import Unreadable, annotation, claim_of, key_of, node_of, phase_of, reason_pending
from tests.soak.system.workload import Planned

MOST_LINES = 40
NO_AGENT = "the agent of this node does not run"


@dataclass
class Life:
    """One pod: times are seconds since the beginning, None where it has not happened."""

    planned: Planned
    created: float | None = None
    pod: dict[str, Any] | None = None  # as last seen
    bound: float | None = None
    running: float | None = None
    reasoned: float | None = None  # since when it has said why it is pending
    phase: str = ""
    reason: str = ""
    deleted_for: str = ""  # why we asked for its deletion
    gone: float | None = None
    lines: list[str] = field(default_factory=list)
    again: float = 0.0  # nothing is done for it before

    def tell(self, at: float, text: str) -> None:
        if len(self.lines) < MOST_LINES and not (self.lines and self.lines[-1].endswith(text)):
            self.lines.append(f"{at:7.1f} s {text}")


class Lives:
    """All pods by namespace and name. ``take`` is what a ``Mirror`` calls."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._lock = threading.RLock()
        self.all: dict[str, Life] = {}
        self._alive: dict[str, Life] = {}
        self.gangs: dict[str, Gang] = {}
        findings.story_of = self.story_of

    def story_of(self, key: str) -> list[str]:
        life = self.all.get(key)
        return [f"{life.planned.kind}, {life.planned.end}", *life.lines] if life is not None else ["not one of ours"]

    def announce(self, planned: Planned) -> Life:
        """Note a pod that is about to be created."""
        with self._lock:
            life = self.all[planned.key] = self._alive[planned.key] = Life(planned)
            if planned.gang:
                name = f"{planned.namespace}/{planned.gang}"
                gang = self.gangs.setdefault(name, Gang(planned.size, possible=planned.possible))
                gang.created.add(planned.key)
            return life

    def gang_of(self, life: Life) -> Gang | None:
        planned = life.planned
        return self.gangs[f"{planned.namespace}/{planned.gang}"] if planned.gang else None

    def alive(self, check: Callable[[Life], bool] = lambda life: True) -> list[Life]:
        """Return those that are not gone."""
        with self._lock:
            return [life for life in self._alive.values() if check(life)]

    def delete_for(self, life: Life, why: str) -> None:
        """Note that we delete a pod, before it is asked for."""
        with self._lock:
            life.deleted_for = life.deleted_for or why
            gang = self.gang_of(life)
            if gang is not None and not gang.whole:
                gang.broken = True

    def lost(self, keys: Iterable[str]) -> None:
        """Forget pods that were never created."""
        with self._lock:
            for key in keys:
                self.all.pop(key, None)
                self._alive.pop(key, None)

    def take(self, kind: str, pod: dict[str, Any]) -> None:
        """Take in what the API server says of a pod."""
        with self._lock:
            life = self.all.get(key_of(pod))
            if life is not None:
                self._take(life, kind, pod, self._findings.now())

    def _take(self, life: Life, kind: str, pod: dict[str, Any], now: float) -> None:
        key, before, life.pod = life.planned.key, life.pod, pod
        if kind == "DELETED":
            life.gone = now
            self._alive.pop(key, None)
            life.tell(now, "is gone")
            if not life.deleted_for:
                self._findings.violated("no pod is lost", f"{key} is gone, and nobody of us deleted it", [key])
            return
        if life.created is None:
            life.created = now
        if pod["metadata"].get("deletionTimestamp"):
            life.tell(now, "is being deleted")
        reason = reason_pending(pod) if not node_of(pod) else ""
        if reason:
            life.reasoned = life.reasoned or now
            life.tell(now, f"waits: {reason[:200]}")
        life.reason = reason
        if node_of(pod) and life.bound is None:
            life.bound = now
            life.tell(now, f"is bound to {node_of(pod)}: {_allocation(pod)}")
            self._bound(life, now)
        elif before is not None and life.bound is not None and _allocation(before) != _allocation(pod):
            life.tell(now, f"its allocation is now {_allocation(pod)}")
            self._findings.count("allocations that were corrected")
            if _gpus(pod) < _gpus(before):
                self._findings.count("shared pods that the kubelet put on fewer GPUs than they asked for")
        if phase_of(pod) != life.phase:
            life.phase = phase_of(pod)
            life.tell(now, f"is {life.phase} {pod['status'].get('reason', '')} {pod['status'].get('message', '')}")
            if life.phase == "Failed":
                self._failed(life, pod)
        if life.phase == "Running" and life.running is None and _all_run(pod):
            life.running = now

    def _bound(self, life: Life, now: float) -> None:
        planned = life.planned
        if not planned.possible:
            self._findings.violated("nothing starts that does not fit", f"{planned.key} is bound", [planned.key])
        gang = self.gang_of(life)
        if gang is not None:
            gang.see(planned.key, now)
            if gang.whole == now:
                self._findings.count("gangs that started")
                self._findings.lasted("a gang in part", gang.in_part_for(now), planned.gang)
        if life.created is not None:
            self._findings.lasted("from creation to Binding", now - life.created, planned.key)

    def _failed(self, life: Life, pod: dict[str, Any]) -> None:
        key, status = life.planned.key, pod["status"]
        text = f"{status.get('reason', '')}: {status.get('message', '')}"
        known = next((words for words in (*NOBODY_ANSWERED, NO_AGENT) if words in text), "")
        own = any(words in text for words in ITS_OWN_WORDS)
        if known and not own and life.planned.real:
            self._findings.count(f"pods failed by a kubelet without a plugin: {known}")
        elif life.running is not None and life.deleted_for and not status.get("reason"):
            # What is killed on deletion, with its container runtime or after its grace period, has an exit code.
            self._findings.count("running pods whose containers were killed when they were deleted")
        else:
            self._findings.violated("no pod fails for good but for what the pages name", f"{key}: {text}", [key])


def _allocation(pod: dict[str, Any]) -> str | None:
    return annotation(pod, "gputile.io/allocation")


def _gpus(pod: dict[str, Any]) -> int:
    try:
        claim = claim_of(pod)
    except Unreadable:  # what the judge tells of
        return 0
    return len(claim.gpus) if claim is not None else 0


def _all_run(pod: dict[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses")
    return statuses is None or all("running" in each.get("state", {}) for each in statuses)
