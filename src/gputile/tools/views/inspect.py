"""Builds the records of nodes, GPUs and pods for all views, and prints the tables of ACK's tool.

``kubectl inspect cgpu`` prints the columns, order and totals of ACK's tool (V2, V3). The spacing is
copied from ACK's sample output, where headings are misaligned with the rows by two characters.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from gputile.api.wording import described
from gputile.core.devices.claim_request import CLAIM_UNIT_MIB
from gputile.core.ledger.booking import Booking, booking_of, claim_booking, claim_node
from gputile.core.ledger.booking_index import reserved_booking
from gputile.core.ledger.node_info import NodeInfo, node_info_of
from gputile.tools.views.terminal_text import aligned, inert

if TYPE_CHECKING:
    from gputile.api.config.v1alpha1 import Configuration
    from gputile.api.core import Node, Pod
    from gputile.api.resource_claims import ResourceClaim
    from gputile.core.ledger.ledger import Ledger

_RULE = "-" * 86
_CELL_GAP, _NAME_GAP, _ADDRESS_GAP = 19, 2, 4
_USUAL_CELL = 5  # characters of "15/15"; a longer cell widens its column


class GpuSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU, with its allocatable and booked amounts."""

    index: Annotated[int, described("The number of the GPU on its node.")]
    uuid: Annotated[str, described("The GPU's UUID, as NVIDIA's tools print it.")]
    model: Annotated[str, described('The GPU\'s model, or "" if unknown.')]
    total_mib: Annotated[int, described("Allocatable memory, in MiB.")]
    booked_mib: Annotated[int, described("Booked memory, in MiB.")]
    compute_percent: Annotated[int, described("Booked compute, in percent.")]
    pods: Annotated[int, described("The number of pods on the GPU.")]
    healthy: Annotated[bool, described("Whether the GPU is healthy.")]


class PodSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that is bound to a node or has a reservation on it, with its share of each GPU."""

    namespace: Annotated[str, described("The pod's namespace.")]
    name: Annotated[str, described("The pod's name.")]
    mib: Annotated[
        dict[int, int], described("The pod's memory on each GPU in MiB, by the number of the GPU.")
    ]
    whole: Annotated[bool, described("Whether the pod has whole GPUs.")]
    asked_mib: Annotated[int, described("The pod's request, in MiB.")]
    problem: Annotated[
        str, described('The reason why the pod\'s GPUs are unknown, or "" if they are known.')
    ] = ""
    slices: Annotated[
        dict[int, int], described("The pod's time slices of each GPU, by the number of the GPU.")
    ] = {}


class NodeSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A node, with its GPUs and the pods on them."""

    name: Annotated[str, described("The node's name.")]
    address: Annotated[str, described("The node's address.")]
    mode: Annotated[str, described('The mode in force, or "" if the mode is invalid.')]
    shared: Annotated[bool, described("Whether pods share the node's GPUs by memory.")]
    unit_mib: Annotated[int, described("The node's memory unit, in MiB.")]
    gpus: Annotated[list[GpuSummary], described("The node's GPUs.")]
    pods: Annotated[list[PodSummary], described("The pods on its GPUs.")]
    problem: Annotated[
        str, described('The error in the node\'s annotations, or "" if there is none.')
    ] = ""
    replicas: Annotated[
        int, described("The number of time slices of each GPU, or 0 without time-slicing.")
    ] = 0

    @property
    def troubles(self) -> list[str]:
        """Sentences on the node's problem and on each unhealthy GPU."""
        unhealthy = [f"GPU {gpu.index} is unhealthy" for gpu in self.gpus if not gpu.healthy]
        return [self.problem, *unhealthy] if self.problem else unhealthy

    @property
    def booked_mib(self) -> int:
        return sum(gpu.booked_mib for gpu in self.gpus)

    @property
    def total_mib(self) -> int:
        return sum(gpu.total_mib for gpu in self.gpus)

    @property
    def unplaced_mib(self) -> int:
        """The sum in MiB of the requests of pods whose GPUs are unknown."""
        return sum(pod.asked_mib for pod in self.pods if not pod.mib)


def ledger_summaries(ledger: "Ledger") -> list[NodeSummary]:
    """Return, ordered by name, the nodes that have GPUs, booked pods or problems."""
    return _non_empty(_node(info, ledger.on_node(info.name)) for _, info in ledger.nodes())


def node_summaries(
    nodes: "Iterable[Node]",
    pods: "Iterable[Pod]",
    configuration: "Configuration",
    now_ns: int,
    claims: "Iterable[ResourceClaim]" = (),
) -> list[NodeSummary]:
    """Return the same records as ``ledger_summaries``, but without the slow import of numpy.

    Reservations that have expired by ``now_ns``, Unix time in nanoseconds, are excluded.
    """
    bookings: dict[str, list[Booking]] = {}
    for pod in pods:
        booking = booking_of(pod, configuration.unit_mib, configuration.trust_group)
        if booking is None:
            booking = reserved_booking(pod, configuration)
            if booking is None or booking.expires_ns <= now_ns:
                continue
        bookings.setdefault(booking.node, []).append(booking)
    known = sorted(
        (node_info_of(node, configuration) for node in nodes), key=lambda info: info.name
    )
    by_name = {info.name: info for info in known}
    for claim in claims:
        group = configuration.trust.group_of(claim.metadata.namespace)
        booking = claim_booking(claim, by_name.get(claim_node(claim)), group)
        if booking is not None:
            bookings.setdefault(booking.node, []).append(booking)
    return _non_empty(_node(info, bookings.get(info.name, ())) for info in known)


def _non_empty(nodes: Iterable[NodeSummary]) -> list[NodeSummary]:
    return [node for node in nodes if node.gpus or node.pods or node.problem]


def of_namespace(node: NodeSummary, namespace: str) -> NodeSummary:
    """Remove the pods of other namespaces from a node, unless ``namespace`` is "".

    Booked amounts do not change. Pods whose GPUs are unknown remain, because the summary contains
    the sum of their requests.
    """
    if not namespace:
        return node
    pods = [pod for pod in node.pods if pod.namespace == namespace or not pod.mib]
    return msgspec.structs.replace(node, pods=pods)


def _node(info: NodeInfo, bookings: Iterable[Booking]) -> NodeSummary:
    gpus = info.inventory.gpus
    position = {gpu.uuid: i for i, gpu in enumerate(gpus)}
    totals = [info.gpu_total(i) for i in range(len(gpus))]
    mib, percent, count = [0] * len(gpus), [0] * len(gpus), [0] * len(gpus)
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    pods = []
    for booking in bookings:
        pods.append(_pod(booking, index_of, sliced=info.sliced))
        for share in booking.gpus:
            if (i := position.get(share.uuid)) is not None:
                amounts = booking.amounts(share, totals[i], info.replicas)
                mib[i] += amounts[0]
                percent[i] += amounts[1]
                count[i] += 1
    return NodeSummary(
        name=info.name,
        address=info.address,
        mode=info.mode.value if info.mode else "",
        shared=info.mode is not None and info.mode.shared,
        unit_mib=info.unit_mib,
        gpus=[
            GpuSummary(
                index=gpu.index,
                uuid=gpu.uuid,
                model=gpu.model,
                total_mib=totals[i],
                booked_mib=mib[i],
                compute_percent=percent[i],
                pods=count[i],
                healthy=gpu.healthy,
            )
            for i, gpu in enumerate(gpus)
        ],
        pods=sorted(pods, key=lambda pod: (pod.namespace, pod.name)),
        problem=info.problem,
        replicas=info.replicas,
    )


def _pod(booking: Booking, index_of: dict[str, int], *, sliced: bool) -> PodSummary:
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
        slices=Counter(
            index_of[share.uuid] for share in booking.gpus if sliced and share.uuid in index_of
        ),
    )


def unit_of(nodes: Sequence[NodeSummary], configured_mib: int) -> int:
    """Return the memory unit for the tables, in MiB.

    If all shared nodes have the same unit, the tables use that unit. Otherwise they use the
    configured unit. Nodes that serve claims are ignored, because they have no unit of their own.
    """
    in_force = {node.unit_mib for node in nodes if node.shared and node.unit_mib != CLAIM_UNIT_MIB}
    return in_force.pop() if len(in_force) == 1 else configured_mib


def unit_name(unit_mib: int) -> str:
    """Return the unit as the table's heading shows it, such as "GiB", "128MiB" or "2GiB"."""
    if unit_mib == 1024:
        return "GiB"
    return f"{unit_mib // 1024}GiB" if unit_mib % 1024 == 0 else f"{unit_mib}MiB"


def summary(nodes: Sequence[NodeSummary], unit_mib: int, width: int | None = None) -> str:
    """Return the tables of shared, whole and time-sliced GPUs, and then all problems.

    The table of shared GPUs is the table of ACK's tool. Other programs parse this table, so
    it has no maximum width and does not mark unhealthy GPUs. The other tables are at most ``width``
    columns wide, and mark unhealthy GPUs with an asterisk.
    """
    shared = [node for node in nodes if node.shared]
    lines = _summary_lines(shared, unit_mib)
    lines += [_RULE, "Allocated/Total GPU Memory In Cluster:", _total(shared, unit_mib)]
    whole = [node for node in nodes if not node.shared and not node.replicas]
    if whole:
        rows = [("NAME", "IPADDRESS", "MODE", "GPUs(Allocated/Total)")]
        rows += [
            (node.name, node.address or "-", node.mode or "-", node.problem or _gpu_counts(node))
            for node in whole
        ]
        lines += ["", "Whole GPUs:", *aligned(rows, width)]
    sliced = [node for node in nodes if node.replicas]
    if sliced:
        lines += ["", "Time-sliced GPUs, by time slices:", *aligned(_sliced_rows(sliced), width)]
    # The table of whole GPUs already shows the problem of a node without GPUs.
    listed = [node for node in nodes if node.shared or node.gpus]
    troubled = [(node.name, trouble) for node in listed for trouble in node.troubles]
    if troubled:
        lines += ["", "Problems:", *aligned([("NAME", "PROBLEM"), *troubled], width)]
    return "".join(f"{inert(line)}\n" for line in lines)


def details(nodes: Sequence[NodeSummary], unit_mib: int, width: int | None = None) -> str:
    """Return a table of pods for each node (option ``-d``), at most ``width`` columns wide."""
    lines: list[str] = []
    for node in nodes:
        lines += [f"NAME:       {node.name}", f"IPADDRESS:  {node.address}", ""]
        if node.troubles:
            lines += [*(f"PROBLEM:    {trouble}" for trouble in node.troubles), ""]
        unplaced = any(not pod.mib for pod in node.pods)
        heading = ["NAME", "NAMESPACE", *(f"GPU{gpu.index}(Allocated)" for gpu in node.gpus)]
        rows = [tuple([*heading, "PENDING(Allocated)"] if unplaced else heading)]
        rows += [_pod_row(node, pod, unit_mib, unplaced) for pod in node.pods]
        lines += aligned(rows, width)
        if node.shared:
            lines += [
                f"Allocated : {_units_up(node.booked_mib, unit_mib)} "
                f"({_percent([node], unit_mib)}%)"
            ]
            lines += [f"Total :     {node.total_mib // unit_mib}"]
        elif node.replicas:
            lines += [f"Allocated : {sum(gpu.pods for gpu in node.gpus)} time slices"]
            total = len(node.gpus) * node.replicas
            lines += [f"Total :     {total} time slices of {len(node.gpus)} GPUs"]
        else:
            booked = sum(gpu.pods > 0 for gpu in node.gpus)
            lines += [f"Allocated : {booked} GPUs", f"Total :     {len(node.gpus)} GPUs"]
        lines += [_RULE[:width]]
    shared = [node for node in nodes if node.shared]
    lines += ["Allocated/Total GPU Memory In Cluster:", _total(shared, unit_mib)]
    return "".join(f"{inert(line)}\n" for line in lines)


def _summary_lines(nodes: Sequence[NodeSummary], unit_mib: int) -> list[str]:
    """Return the heading and rows of ACK's table, with a column for each GPU index."""
    indices = sorted({gpu.index for node in nodes for gpu in node.gpus})
    unplaced = any(node.unplaced_mib for node in nodes)
    headings = [f"GPU{i}(Allocated/Total)" for i in indices]
    gpus = [
        {gpu.index: _cell(gpu.booked_mib, gpu.total_mib, unit_mib) for gpu in node.gpus}
        for node in nodes
    ]
    columns = [[node_gpus.get(i, "") for node_gpus in gpus] for i in indices]
    if unplaced:
        headings.append("PENDING(Allocated)")
        columns.append([str(_units_up(node.unplaced_mib, unit_mib)) for node in nodes])
    name = max([len(node.name) for node in nodes] + [len("NAME") + 2])
    address = max([len(node.address) for node in nodes] + [len("IPADDRESS") + 2 - _ADDRESS_GAP])
    cells = [max(map(len, column)) for column in columns]
    top = "NAME".ljust(name) + "IPADDRESS".ljust(address + _ADDRESS_GAP)
    for heading, width in zip(headings, cells, strict=True):
        top += heading.ljust(max(len(heading) + 2, width + _CELL_GAP if width > _USUAL_CELL else 0))
    lines = [top + f"GPU Memory({unit_name(unit_mib)})"]
    for i, node in enumerate(nodes):
        line = node.name.ljust(name + _NAME_GAP) + node.address.ljust(address + _NAME_GAP)
        line += "".join(
            col[i].ljust(width + _CELL_GAP) for col, width in zip(columns, cells, strict=True)
        )
        lines.append(line + _cell(node.booked_mib, node.total_mib, unit_mib))
    return lines


def _pod_row(node: NodeSummary, pod: PodSummary, unit_mib: int, unplaced: bool) -> tuple[str, ...]:
    cells = [pod.name, pod.namespace]
    for gpu in node.gpus:
        mib = pod.mib.get(gpu.index, 0)
        whole = str(pod.slices.get(gpu.index, 0)) if node.replicas else "all"
        cells.append((whole if mib else "0") if pod.whole else str(_units_up(mib, unit_mib)))
    if unplaced:
        cells.append("0" if pod.mib else str(_units_up(pod.asked_mib, unit_mib)))
    return tuple(cells)


def _gpu_counts(node: NodeSummary) -> str:
    """Return the numbers of booked GPUs and of all GPUs. "3/8*" means that a GPU is unhealthy."""
    return (
        f"{sum(c.pods > 0 for c in node.gpus)}/{len(node.gpus)}{''.join(map(_mark, node.gpus))[:1]}"
    )


def _sliced_rows(nodes: Sequence[NodeSummary]) -> list[tuple[str, ...]]:
    """Return a table of nodes with time-sliced GPUs. Cells show allocated and all time slices."""
    indices = sorted({gpu.index for node in nodes for gpu in node.gpus})
    rows: list[tuple[str, ...]] = [
        ("NAME", "IPADDRESS", *(f"GPU{i}(Allocated/Total)" for i in indices))
    ]
    for node in nodes:
        cells = {gpu.index: f"{gpu.pods}/{node.replicas}{_mark(gpu)}" for gpu in node.gpus}
        rows.append((node.name, node.address or "-", *(cells.get(i, "") for i in indices)))
    return rows


def _mark(gpu: GpuSummary) -> str:
    return "" if gpu.healthy else "*"


def _cell(booked_mib: int, total_mib: int, unit_mib: int) -> str:
    return f"{_units_up(booked_mib, unit_mib)}/{total_mib // unit_mib}"


def _total(nodes: Sequence[NodeSummary], unit_mib: int) -> str:
    used, total = _sums(nodes, unit_mib)
    return f"{used}/{total} ({_percent(nodes, unit_mib)}%)"


def _percent(nodes: Sequence[NodeSummary], unit_mib: int) -> int:
    used, total = _sums(nodes, unit_mib)
    return used * 100 // total if total else 0


def _sums(nodes: Sequence[NodeSummary], unit_mib: int) -> tuple[int, int]:
    used = sum(_units_up(node.booked_mib, unit_mib) for node in nodes)
    return used, sum(node.total_mib // unit_mib for node in nodes)


def _units_up(mib: int, unit_mib: int) -> int:
    """Convert MiB to units, rounded up."""
    return -(-mib // unit_mib)
