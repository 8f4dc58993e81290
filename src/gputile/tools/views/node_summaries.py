"""Builds the records of nodes, GPUs and pods that every table, page and JSON answer is made of."""

from typing import Annotated

import msgspec

from gputile.api.wording import described
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_info import NodeInfo


class GpuSummary(msgspec.Struct, frozen=True, rename="camel"):
    """One GPU: MiB, percent of compute and pods booked on it. ``total_mib`` is what can be given away."""

    index: Annotated[int, described("The number of the GPU on its node.")]
    uuid: Annotated[str, described("The GPU's UUID, as NVIDIA's tools print it.")]
    model: Annotated[str, described('The GPU\'s model, "" where it is not known.')]
    total_mib: Annotated[int, described("Memory that can be given away, MiB.")]
    booked_mib: Annotated[int, described("Memory that is booked, MiB.")]
    compute_percent: Annotated[int, described("Compute that is booked, per cent.")]
    pods: Annotated[int, described("How many pods have a part of it.")]
    healthy: Annotated[bool, described("Whether it is in order.")]


class PodSummary(msgspec.Struct, frozen=True, rename="camel"):
    """One pod on a node: its MiB by GPU index. ``problem`` says why its GPUs are not known, where they are not."""

    namespace: Annotated[str, described("The pod's namespace.")]
    name: Annotated[str, described("The pod's name.")]
    mib: Annotated[dict[int, int], described("MiB on each GPU, by the number of the GPU.")]
    whole: Annotated[bool, described("Whether it has whole GPUs.")]
    asked_mib: Annotated[int, described("What it asks for, MiB.")]
    problem: Annotated[str, described('Why its GPUs are not known, "" where they are.')] = ""


class NodeSummary(msgspec.Struct, frozen=True, rename="camel"):
    """One node. ``mode`` is "" where it is not valid; ``problem`` says what is wrong with the node's own words.

    ``replicas`` is how many pods have each whole GPU in turns, 0 where a GPU is not time-sliced.
    """

    name: Annotated[str, described("The node's name.")]
    address: Annotated[str, described("The node's address.")]
    mode: Annotated[str, described('The mode in force, "" where it is not valid.')]
    shared: Annotated[bool, described("Whether GPUs are given away in parts.")]
    unit_mib: Annotated[int, described("The memory unit that the node counts in, MiB.")]
    gpus: Annotated[list[GpuSummary], described("Its GPUs.")]
    pods: Annotated[list[PodSummary], described("The pods that have GPUs there.")]
    problem: Annotated[str, described('What is wrong with the node\'s own words, "" for nothing.')] = ""
    replicas: Annotated[
        int, described("How many pods have each whole GPU in turns, 0 where a GPU is not time-sliced.")
    ] = 0

    @property
    def troubles(self) -> list[str]:
        """What is wrong with the node, and each of its GPUs that is unhealthy."""
        unhealthy = [f"GPU {gpu.index} is unhealthy" for gpu in self.gpus if not gpu.healthy]
        return [self.problem, *unhealthy] if self.problem else unhealthy

    @property
    def booked_mib(self) -> int:
        """MiB booked on all GPUs."""
        return sum(gpu.booked_mib for gpu in self.gpus)

    @property
    def total_mib(self) -> int:
        """MiB of all GPUs that can be given away."""
        return sum(gpu.total_mib for gpu in self.gpus)

    @property
    def unplaced_mib(self) -> int:
        """MiB that pods on unknown GPUs ask for."""
        return sum(pod.asked_mib for pod in self.pods if not pod.mib)


def node_summaries(ledger: Ledger) -> list[NodeSummary]:
    """Return all nodes with GPUs, or with pods that ask for some, by name."""
    found = (_node(ledger, row, node_info) for row, node_info in ledger.nodes())
    return [node for node in found if node.gpus or node.pods or node.problem]


def of_namespace(node: NodeSummary, namespace: str) -> NodeSummary:
    """Return a node with its pods of one namespace alone; "" leaves all. What is booked stays as it is.

    A pod of which nobody knows the GPUs stays: what it asks for counts.
    """
    if not namespace:
        return node
    pods = [pod for pod in node.pods if pod.namespace == namespace or not pod.mib]
    return msgspec.structs.replace(node, pods=pods)


def _node(ledger: Ledger, row: int, node_info: NodeInfo) -> NodeSummary:
    arrays = ledger.node_arrays
    gpus = [
        GpuSummary(
            index=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            total_mib=int(arrays.total[row, i]),
            booked_mib=int(arrays.used[row, i]),
            compute_percent=int(arrays.percent[row, i]),
            pods=int(arrays.pods[row, i]),
            healthy=gpu.healthy,
        )
        for i, gpu in enumerate(node_info.inventory.gpus)
    ]
    known = {gpu.uuid: gpu.index for gpu in node_info.inventory.gpus}
    pods = sorted(
        (_pod(booking, known) for booking in ledger.on_node(node_info.name)), key=lambda p: (p.namespace, p.name)
    )
    return NodeSummary(
        name=node_info.name,
        address=node_info.address,
        mode=node_info.mode.value if node_info.mode else "",
        shared=node_info.mode is not None and node_info.mode.shared,
        unit_mib=node_info.unit_mib,
        gpus=gpus,
        pods=pods,
        problem=node_info.problem,
        replicas=node_info.replicas,
    )


def _pod(booking: Booking, index_of: dict[str, int]) -> PodSummary:
    problem = booking.problem
    missing = [share.uuid for share in booking.gpus if share.uuid not in index_of]
    if missing:
        problem = f"it holds GPU {missing[0]}, which the node does not have"
    return PodSummary(
        namespace=booking.namespace,
        name=booking.name,
        mib={index_of[share.uuid]: share.mib for share in booking.gpus if share.uuid in index_of},
        whole=booking.whole,
        asked_mib=booking.asked_mib,
        problem=problem,
    )
