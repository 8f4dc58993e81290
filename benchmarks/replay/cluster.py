"""Builds the cluster of a trace from the ledger and the placement engine that the extender uses.

In a trace, shares and whole GPUs can be on the same node. Therefore all nodes are in mode ``cgpu``,
a GPU has 1,000 memory units, and a pod for n whole GPUs requests all units of n GPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.replay.trace import Nodes, PodShape
from gputile.api.affinity import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import (
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from gputile.api.well_known import (
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    MODEL_LABEL,
    SMALLEST_UNIT_MIB,
    Mode,
    Placement,
)
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB
from gputile.core.devices.inventory import (
    Gpu,
    Inventory,
    encode_inventory,
    model_label_value,
    model_labels,
)
from gputile.core.devices.request import Request
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

MOST_PODS_PER_GPU = 1024


class ReplayCluster:
    """The nodes of a trace, which have no pods at first. Among equal nodes, the lowest row is
    chosen.

    ``gpus[node]`` is the number of GPUs of a node. ``allowed[shape, node]`` states whether the node
    has a GPU model that pods of the shape accept. With ``claims`` the nodes serve claims, so
    kube-scheduler chooses the GPUs.
    """

    def __init__(
        self,
        nodes: Nodes,
        shapes: Sequence[PodShape],
        rank: Int64,
        placement: Placement = "binpack",
        *,
        claims: bool = False,
    ) -> None:
        configuration = Configuration(
            placement=placement,
            gpu_memory_unit=f"{SMALLEST_UNIT_MIB}MiB",
            max_pods_per_gpu=MOST_PODS_PER_GPU,
        )
        self.ledger = Ledger(configuration)
        self.engine = PlacementEngine(self.ledger)
        self.shapes = tuple(shapes)
        order = np.argsort(rank, kind="stable").tolist()
        self.gpus: Int64 = nodes.gpus[order]
        for row, i in enumerate(order):
            node = _node(
                row,
                int(nodes.cpu[i]),
                int(nodes.memory[i]),
                int(nodes.gpus[i]),
                nodes.models[i],
                claims=claims,
            )
            self.ledger.apply_node(node)
        models = [nodes.models[i] for i in order]
        self.allowed: Bool = np.array(
            [[not shape.models or model in shape.models for model in models] for shape in shapes],
            np.bool_,
        ).reshape(len(self.shapes), len(order))
        self._pods_by_shape = [_pod(shape) for shape in self.shapes]
        self._requests = [self.engine.request(pod) for pod in self._pods_by_shape]
        if claims:
            self._requests = [_by_claim(request) for request in self._requests]

    @property
    def cpu(self) -> Int64:
        """The free milli-CPU of each node."""
        return self.ledger.node_arrays.cpu[: len(self.gpus)]

    @property
    def memory(self) -> Int64:
        """The free memory of each node in MiB, without GPU memory."""
        return self.ledger.node_arrays.host_mib[: len(self.gpus)]

    def free(self, rows: Int64 | slice = slice(None)) -> Int64:
        """Return the free milli-GPU of each GPU, as [rows, GPUs]. A missing GPU has 0."""
        arrays, count = self.ledger.node_arrays, len(self.gpus)
        free: Int64 = (arrays.total[:count][rows] - arrays.used[:count][rows]) // SMALLEST_UNIT_MIB
        return free

    def request(self, index: int) -> Request | None:
        """Return the GPU request of a pod of ``shapes[index]``."""
        return self._requests[index]

    def pod(self, uid: str, index: int, row: int | None = None) -> Pod:
        """Make a pod of ``shapes[index]``, bound to the node in ``row`` if it is given."""
        pod = self._pods_by_shape[index]
        meta = msgspec.structs.replace(pod.metadata, name=uid, uid=uid)
        spec = pod.spec if row is None else msgspec.structs.replace(pod.spec, node_name=_name(row))
        return msgspec.structs.replace(pod, metadata=meta, spec=spec)

    def admits(self, index: int) -> Bool:
        """Return for each node whether it passes kube-scheduler's filters for ``shapes[index]``.

        The filters check models, CPU and memory, but not free GPUs.
        """
        shape = self.shapes[index]
        admits: Bool = self.allowed[index] & (self.cpu >= shape.cpu) & (self.memory >= shape.memory)
        return admits

    def fits(self, index: int, rows: Int64) -> Bool:
        """Return for each of ``rows`` whether a pod of ``shapes[index]`` fits, with its GPUs."""
        shape = self.shapes[index]
        fit: Bool = self.admits(index)[rows]
        if shape.gpus:
            fit &= (self.free(rows) >= shape.milli).sum(axis=1) >= shape.gpus
        return fit

    def book(self, uid: str, index: int, row: int) -> None:
        """Book a pod on a node, on the GPUs that the placement engine chooses."""
        request = self._requests[index]
        if request is None:
            self.ledger.apply_pod(self.pod(uid, index, row))
            return
        decision = self.engine.decide(request, _name(row), 0)
        if not isinstance(decision, Decision):
            raise AssertionError(f"{_name(row)} fitted pod {uid} and then did not: {decision.text}")
        self._assume(uid, index, request, decision)

    def book_on(self, uid: str, index: int, row: int, gpus: Sequence[int]) -> None:
        """Book a pod on these GPUs of a node."""
        request, info = self._requests[index], self.ledger.node_info(row)
        if request is None or info is None:
            self.ledger.apply_pod(self.pod(uid, index, row))
            return
        self._assume(
            uid,
            index,
            request,
            self.engine.decision(request, info, [info.inventory.gpus[i] for i in gpus], 0),
        )

    def _assume(self, uid: str, index: int, request: Request, decision: Decision) -> None:
        booking = decision.booking(self.pod(uid, index), request, 0.0)
        if booking is not None:
            self.ledger.assume(booking)

    def release(self, uid: str) -> None:
        """Remove a pod from its node."""
        self.ledger.remove_pod(uid)


def after(free: Int64, shape: PodShape) -> tuple[Int64, Bool]:
    """Return the free amounts after each placement of the pod, and which placements are possible.

    ``free`` has the axes [nodes, GPUs]. The results have the axes [nodes, placements, GPUs] and
    [nodes, placements]. A pod with one GPU has one placement for each GPU. Other pods have one
    placement: no GPU, or the first GPUs that are free enough.
    """
    if shape.gpus == 1:
        ways = free[:, None, :] - shape.milli * np.eye(free.shape[1], dtype=np.int64)
        return ways, free >= shape.milli
    if shape.gpus == 0:
        return free[:, None, :], np.ones((len(free), 1), np.bool_)
    ready = free >= shape.milli
    taken = ready & (ready.cumsum(axis=1) <= shape.gpus)
    return (free - shape.milli * taken)[:, None, :], np.ones((len(free), 1), np.bool_)


def _name(row: int) -> str:
    return f"node-{row}"


def _by_claim(request: Request | None) -> Request | None:
    if request is None:
        return None
    return replace(request, shape=replace(request.shape, unit_mib=CLAIM_UNIT_MIB, by_claims=True))


def _node(row: int, cpu: int, memory: int, gpus: int, model: str, *, claims: bool) -> Node:
    all_gpus = tuple(
        Gpu(i, f"{row}-{i}", 1000 * SMALLEST_UNIT_MIB, model=model[:96]) for i in range(gpus)
    )
    inventory = Inventory(all_gpus, mode=Mode.CGPU.value, unit_mib=SMALLEST_UNIT_MIB, claims=claims)
    labels = {MODE_LABEL: Mode.CGPU.value} | model_labels(all_gpus)
    annotations = {INVENTORY_ANNOTATION: encode_inventory(inventory)} if gpus else {}
    return Node(
        metadata=ObjectMeta(name=_name(row), labels=labels, annotations=annotations),
        status=NodeStatus(allocatable=_host(cpu, memory)),
    )


def _pod(shape: PodShape) -> Pod:
    limits: Mapping[str, Quantity] = {GPU_MEMORY: shape.gpus * shape.milli} if shape.gpus else {}
    affinity = None
    if shape.models:
        values = tuple(sorted(model_label_value(model) for model in shape.models))
        rule = NodeSelectorRequirement(key=MODEL_LABEL, operator="In", values=values)
        terms = (NodeSelectorTerm(match_expressions=(rule,)),)
        affinity = Affinity(
            node_affinity=NodeAffinity(required=NodeSelector(node_selector_terms=terms))
        )
    resources = ResourceRequirements(requests=_host(shape.cpu, shape.memory), limits=dict(limits))
    return Pod(
        metadata=ObjectMeta(labels={GPU_COUNT_LABEL: str(shape.gpus)} if shape.gpus > 1 else {}),
        spec=PodSpec(containers=(Container(name="main", resources=resources),), affinity=affinity),
    )


def _host(cpu: int, memory: int) -> dict[str, Quantity]:
    return {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}
