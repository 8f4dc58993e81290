"""Places pods with equal requests one after the other, and evaluates equal nodes only once.

If no rule refers to other pods, such a pod goes to the node with the best score, and of equal nodes to the one that
entered the ledger first: a rank outweighs all scores of kube-scheduler together. A node's answer depends only on the
bookings of its own GPUs, and on the CPU and memory that it has left.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from gputile.api.core import Pod, PodSpec
from gputile.core.devices.request import Request
from gputile.core.kube_predicates.predicates import Predicates
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.events import Assumed, PodApplied
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import NodeInfo, ServingMode
from gputile.core.placement.vectorized import UNFIT
from gputile.core.refusal import Refusal
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine
from gputile.tools.simulator.pod_maker import (
    COMPLETION_INDEX,
    POD_INDEX,
    POD_NAME,
    REPLICA_INDEX,
)

_OF_ONE_POD = frozenset({POD_NAME, POD_INDEX, COMPLETION_INDEX, REPLICA_INDEX})

Likeness = tuple[object, ...]


class Likenesses:
    """Keys of pods; pods with equal keys ask for the same."""

    def __init__(self) -> None:
        self._spec: PodSpec | None = None
        self._encoded = b""

    def of(self, pod: Pod) -> Likeness:
        """Return the key of a pod. The pods of a template share their spec, which is looked at once."""
        if pod.spec is not self._spec:
            self._spec, self._encoded = pod.spec, msgspec.msgpack.encode(pod.spec)
        meta = pod.metadata
        return self._encoded, meta.namespace, _common(meta.labels), _common(meta.annotations)


def _common(given: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in given.items() if item[0] not in _OF_ONE_POD)


@dataclass(frozen=True, slots=True)
class _Step:
    """A node's answer for the next pod: positions of the GPUs, the booking, and the node's score afterwards."""

    gpus: tuple[int, ...]
    booking: Booking
    score: int


class NodeStates:
    """Keys of nodes; nodes with equal keys answer every pod alike."""

    def __init__(self, engine: PlacementEngine) -> None:
        self._ledger = engine.ledger
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._kind_of: dict[str, int] = {}

    def key(self, row: int, info: NodeInfo) -> bytes:
        """Return the key of the node in ``row`` as it is now, b"" if no other node can be equal to it."""
        arrays, gpus = self._ledger.node_arrays, self.gpus_key(row, info)
        return gpus and gpus + arrays.cpu[row].tobytes() + arrays.host_mib[row].tobytes()

    def gpus_key(self, row: int, info: NodeInfo) -> bytes:
        """Return a key that is equal for nodes whose GPUs a pod fits, or does not fit, for the same reason."""
        arrays = self._ledger.node_arrays
        if arrays.serving_mode[row] == ServingMode.BLOCKED or info.problem:
            return b""  # its refusals name a pod, or the node itself
        found = blake2b(self._kind(info).to_bytes(4, "little"), digest_size=16)
        for array in (arrays.used, arrays.percent, arrays.pods, arrays.group):
            found.update(array[row].tobytes())
        return found.digest()

    def _kind(self, info: NodeInfo) -> int:
        """Return a number for everything about the node that arriving pods do not change."""
        known = self._kind_of.get(info.name)
        if known is None:
            gpus = tuple((gpu.index, gpu.mib, gpu.healthy) for gpu in info.inventory.gpus)
            alike = info.mode, info.unit_mib, info.placement, info.serving_mode, info.max_pods_per_gpu, info.grouped
            kind = (*alike, info.host, info.configured_unit_mib, info.replicas, info.inventory.bandwidth, gpus)
            known = self._kind_of[info.name] = self._kinds.setdefault(kind, len(self._kinds))
        return known


class EqualPods:
    """Places pods that share one key.

    ``placed_on`` lists the nodes of all pods that the simulation has placed, in order; the caller appends each new one.
    """

    def __init__(
        self,
        pod: Pod,
        request: Request,
        engine: PlacementEngine,
        predicates: Predicates,
        states: NodeStates,
        placed_on: Sequence[str],
    ) -> None:
        self.pod = pod
        self.request = request
        self._engine = engine
        self._predicates = predicates
        self._states = states
        self._placed_on = placed_on
        self._seen = len(placed_on)
        self._steps: dict[bytes, _Step] = {}
        rows = engine.ledger.row_of
        open_rows = [rows[name] for name in predicates.open_alone(pod) if name in rows]
        found = engine.scores(request.shape, request.host)[open_rows].tolist()
        self._score = {row: score for row, score in zip(open_rows, found, strict=True) if score != UNFIT}
        self._queue = [(-score, row) for row, score in self._score.items()]
        heapq.heapify(self._queue)
        self._own = "", UNFIT  # the node of the last pod with this key, and its score since

    @property
    def feasible(self) -> int:
        """How many nodes the next pod fits, as ``best`` has found last."""
        return len(self._score)

    def best(self) -> str | None:
        """Return the node that the next pod goes to, None where it fits none."""
        self._look_again(self._placed_on[self._seen :])
        self._seen = len(self._placed_on)
        while self._queue:
            score, row = self._queue[0]
            info = self._engine.ledger.node_info(row)
            if info is not None and self._score.get(row) == -score:
                return info.name
            heapq.heappop(self._queue)
        return None

    def place(self, pod: Pod, name: str, now_ns: int) -> Decision:
        """Book a pod with this key on the node that is ``best``, and return which GPUs it got there."""
        ledger = self._engine.ledger
        row = ledger.row_of[name]
        info = ledger.node_info(row)
        key = self._states.key(row, info) if info is not None else b""
        step = self._steps.get(key)
        if step is None or info is None:
            return self._first(pod, name, row, key, now_ns)
        gpus = tuple(info.inventory.gpus[i] for i in step.gpus)
        decision = self._engine.decision(self.request, info, gpus, now_ns)
        meta = pod.metadata
        booking = msgspec.structs.replace(
            step.booking,
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            node=name,
            allocation=decision.allocation,
        )
        ledger.apply(Assumed(booking))
        self._own = name, step.score
        return decision

    def _first(self, pod: Pod, name: str, row: int, key: bytes, now_ns: int) -> Decision:
        """Do what ``place`` does, on a node with a key that was not seen before."""
        ledger = self._engine.ledger
        decision = self._engine.decide(self.request, name, now_ns)
        if isinstance(decision, Refusal):
            raise AssertionError(f"{name} fitted {pod.key} and then did not: {decision.text}")
        bind(ledger, pod, decision)
        score = int(self._engine.scores(self.request.shape, self.request.host)[row])
        booking, info = ledger.booking(pod.metadata.uid), ledger.node_info(row)
        if key and booking is not None and booking.allocation is not None and info is not None:
            position = {gpu.uuid: i for i, gpu in enumerate(info.inventory.gpus)}
            self._steps[key] = _Step(tuple(position[chosen.gpu.uuid] for chosen in decision.gpus), booking, score)
        self._own = name, score
        return decision

    def _look_again(self, names: Sequence[str]) -> None:
        """Update the nodes on which pods were placed since the last look."""
        if not names:
            return
        rows = self._engine.ledger.row_of
        known = dict([self._own]) if list(names) == [self._own[0]] else {}
        self._own = "", UNFIT  # the next pod that is placed there changes it
        scores = None if known else self._engine.scores(self.request.shape, self.request.host)
        for name in dict.fromkeys(names):
            row = rows.get(name)
            if row is None:
                continue
            score = known[name] if scores is None else int(scores[row])
            self._score.pop(row, None)
            if score != UNFIT and self._predicates.reason(self.pod, name) is None:
                self._score[row] = score
                heapq.heappush(self._queue, (-score, row))


def settle(ledger: Ledger, pod: Pod, node: str) -> None:
    """Record in the ledger that a pod without GPUs is on its node."""
    ledger.apply(PodApplied(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))))


def bind(ledger: Ledger, pod: Pod, decision: Decision) -> None:
    """Record the pod in the ledger as the API server stores it when it executes the Binding."""
    binding = decision.binding(pod)
    annotations = pod.metadata.annotations | binding.metadata.annotations
    bound = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name=binding.target.name),
    )
    ledger.apply(PodApplied(bound))
