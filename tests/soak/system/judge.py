"""What must hold at every moment, judged from the objects alone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.soak.system.objects import (
    Asked,
    Claim,
    Json,
    Unreadable,
    annotation,
    asked_by,
    claim_of,
    finished,
    gpus_of,
    key_of,
    node_of,
)

LIBRARY_MODES = ("cgpu", "core_mem", "mps")


@dataclass(frozen=True)
class Rules:
    """What the cluster is configured to. ``groups`` is the trust group of each namespace.

    ``kubelets`` are the nodes with a real kubelet: where nobody can tell it about a pod, it chooses the GPUs itself,
    and the booking follows it. There shared pods may be on fewer GPUs than they asked for (docs/concepts/agent.md,
    Limits).
    """

    pods_per_gpu: int
    groups: Mapping[str, str]
    kubelets: frozenset[str] = frozenset()


@dataclass
class _Gpu:
    mib: int = 0
    percent: int = 0
    pods: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    isolated: int = 0
    groups: set[str] = field(default_factory=set)


def over_allocations(nodes: Iterable[Json], pods: Iterable[Json], rules: Rules) -> list[str]:
    """Return what is wrong with the GPUs of these nodes, by the annotations of the pods that are bound to them."""
    gpus = {node["metadata"]["name"]: gpus_of(node) for node in nodes}
    held: dict[tuple[str, str], _Gpu] = defaultdict(_Gpu)
    wrong: list[str] = []
    for pod in pods:
        node = node_of(pod)
        if node not in gpus or finished(pod):
            continue
        key, asked = key_of(pod), asked_by(pod)
        try:
            claim = claim_of(pod)
        except Unreadable as error:
            wrong.append(f"{key} has an allocation that cannot be read: {error}")
            continue
        if claim is None:
            if asked.anything:
                wrong.append(f"{key} is bound to {node} without an allocation")
            continue
        if problem := _not_what_was_asked(pod, claim, asked, node in rules.kubelets):
            wrong.append(f"{key}: {problem}")
        for share in claim.gpus:
            gpu = held[node, share.uuid]
            gpu.mib += share.mib
            gpu.percent += share.percent
            gpu.pods.append(key)
            gpu.isolated += claim.mode in LIBRARY_MODES
            if claim.whole:
                gpu.whole.append(key)
            if claim.mode == "share":
                gpu.groups.add(rules.groups.get(pod["metadata"]["namespace"], pod["metadata"]["namespace"]))
    for (node, uuid), gpu in held.items():
        wrong += _wrong_with(f"GPU {uuid} of {node}", gpus[node].get(uuid), gpu, rules)
    return wrong


def _wrong_with(name: str, mib: int | None, gpu: _Gpu, rules: Rules) -> list[str]:
    if mib is None:
        return [f"{name} is none of the node's, and booked by {gpu.pods}"]
    wrong = []
    if gpu.mib > mib:
        wrong.append(f"{name} has {mib} MiB, and {gpu.mib} MiB are booked by {gpu.pods}")
    if gpu.percent > 100:
        wrong.append(f"{name} is booked with {gpu.percent} percent by {gpu.pods}")
    if gpu.whole and len(gpu.pods) > 1:
        wrong.append(f"{name} is given whole to {gpu.whole}, and booked by {gpu.pods}")
    if gpu.isolated > rules.pods_per_gpu:
        wrong.append(f"{name} has {gpu.isolated} pods, and {rules.pods_per_gpu} are allowed: {gpu.pods}")
    if len(gpu.groups) > 1:
        wrong.append(f"{name} isolates nothing, and is shared by {sorted(gpu.groups)}: {gpu.pods}")
    return wrong


def _not_what_was_asked(pod: Json, claim: Claim, asked: Asked, fewer: bool) -> str:
    """Return in what the allocation is not what the pod asks for, "" where it is; it may be on ``fewer`` GPUs."""
    if len(claim.gpus) > asked.gpus or (len(claim.gpus) < asked.gpus and not (fewer and asked.units)):
        return f"{len(claim.gpus)} GPUs are booked, {asked.gpus} asked for"
    if asked.whole:
        return "" if claim.whole else "a whole GPU is asked for and a part booked"
    unit = int(annotation(pod, "gputile.io/memory-unit-mib") or claim.unit_mib)
    mib, percent = asked.units * unit, asked.percent
    booked = sum(share.mib for share in claim.gpus), sum(share.percent for share in claim.gpus)
    return "" if booked == (mib, percent) else f"{booked} MiB and percent are booked, {(mib, percent)} asked for"


@dataclass
class Gang:
    """What was seen of a gang. ``broken`` is one that we have taken pods from before it had started."""

    size: int
    created: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    first: float = 0.0  # when its first pod was bound
    whole: float = 0.0  # when its last was
    broken: bool = False
    possible: bool = True

    def see(self, name: str, now: float) -> None:
        """Note that a pod of it is bound."""
        self.bound.add(name)
        self.first = self.first or now
        if len(self.bound) >= self.size:
            self.whole = self.whole or now

    def in_part_for(self, now: float) -> float:
        """Return for how many seconds it has run, or did run, in part."""
        return (self.whole or now) - self.first if self.first and not self.broken else 0.0
