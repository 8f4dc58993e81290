"""Prints the tables of ``kubectl inspect cgpu``: columns, order and totals of ACK's tool (V2, V3).

The spacing is that of the documents' sample output, down to its heading, which stands two characters off the rows.
"""

from collections.abc import Sequence

from gputile.tools.views.node_summaries import GpuSummary, NodeSummary, PodSummary
from gputile.tools.views.terminal_text import aligned, inert

_RULE = "-" * 86
_CELL_GAP, _NAME_GAP, _ADDRESS_GAP = 19, 2, 4
_USUAL_CELL = 5  # characters of "15/15": wider cells widen their heading


def unit_of(nodes: Sequence[NodeSummary], configured_mib: int) -> int:
    """Return the memory unit to count in, MiB: the one in force on all shared nodes, else the configured one."""
    in_force = {node.unit_mib for node in nodes if node.shared}
    return in_force.pop() if len(in_force) == 1 else configured_mib


def unit_name(unit_mib: int) -> str:
    """Return the unit as the heading shows it: "GiB", "128MiB", "2GiB"."""
    if unit_mib == 1024:
        return "GiB"
    return f"{unit_mib // 1024}GiB" if unit_mib % 1024 == 0 else f"{unit_mib}MiB"


def summary(nodes: Sequence[NodeSummary], unit_mib: int, width: int | None = None) -> str:
    """Return the table of all nodes, of the whole GPUs in other modes, and of what is wrong.

    The tables but the first one are no wider than ``width``, where it is given. A GPU that is unhealthy is named at
    the end, and marked with an asterisk in the tables that are gputile's own: other programs read the cells of the
    first one, which is the documents'.
    """
    shared = [node for node in nodes if node.shared]
    lines = _summary_lines(shared, unit_mib)
    lines += [_RULE, "Allocated/Total GPU Memory In Cluster:", _total(shared, unit_mib)]
    whole = [node for node in nodes if not node.shared and not node.replicas]
    if whole:
        rows = [("NAME", "IPADDRESS", "MODE", "GPUs(Allocated/Total)")]
        rows += [(node.name, node.address or "-", node.mode or "-", node.problem or _whole(node)) for node in whole]
        lines += ["", "Whole GPUs:", *aligned(rows, width)]
    sliced = [node for node in nodes if node.replicas]
    if sliced:
        lines += ["", "Time-sliced GPUs, by pods:", *aligned(_sliced_rows(sliced), width)]
    told = [node for node in nodes if node.shared or node.gpus]  # what serves nothing said so above
    troubled = [(node.name, trouble) for node in told for trouble in node.troubles]
    if troubled:
        lines += ["", "Problems:", *aligned([("NAME", "PROBLEM"), *troubled], width)]
    return "".join(f"{inert(line)}\n" for line in lines)


def details(nodes: Sequence[NodeSummary], unit_mib: int, width: int | None = None) -> str:
    """Return the pods of each node (``-d``), in tables that are no wider than ``width``, where it is given."""
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
            lines += [f"Allocated : {_units_up(node.booked_mib, unit_mib)} ({_percent([node], unit_mib)}%)"]
            lines += [f"Total :     {node.total_mib // unit_mib}"]
        elif node.replicas:
            lines += [f"Allocated : {sum(gpu.pods for gpu in node.gpus)} pods"]
            lines += [f"Total :     {len(node.gpus) * node.replicas} pods on {len(node.gpus)} GPUs"]
        else:
            held = sum(gpu.pods > 0 for gpu in node.gpus)
            lines += [f"Allocated : {held} GPUs", f"Total :     {len(node.gpus)} GPUs"]
        lines += [_RULE[:width]]
    shared = [node for node in nodes if node.shared]
    lines += ["Allocated/Total GPU Memory In Cluster:", _total(shared, unit_mib)]
    return "".join(f"{inert(line)}\n" for line in lines)


def _summary_lines(nodes: Sequence[NodeSummary], unit_mib: int) -> list[str]:
    """Return heading and rows; a column is an index, which a node without a GPU of that index leaves empty."""
    indices = sorted({gpu.index for node in nodes for gpu in node.gpus})
    unplaced = any(node.unplaced_mib for node in nodes)
    headings = [f"GPU{i}(Allocated/Total)" for i in indices]
    gpus = [{gpu.index: _cell(gpu.booked_mib, gpu.total_mib, unit_mib) for gpu in node.gpus} for node in nodes]
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
        line += "".join(col[i].ljust(width + _CELL_GAP) for col, width in zip(columns, cells, strict=True))
        lines.append(line + _cell(node.booked_mib, node.total_mib, unit_mib))
    return lines


def _pod_row(node: NodeSummary, pod: PodSummary, unit_mib: int, unplaced: bool) -> tuple[str, ...]:
    cells = [pod.name, pod.namespace]
    for gpu in node.gpus:
        mib = pod.mib.get(gpu.index, 0)
        whole = "1" if node.replicas else "all"
        cells.append((whole if mib else "0") if pod.whole else str(_units_up(mib, unit_mib)))
    if unplaced:
        cells.append("0" if pod.mib else str(_units_up(pod.asked_mib, unit_mib)))
    return tuple(cells)


def _whole(node: NodeSummary) -> str:
    """Return how many of a node's GPUs are taken."""
    return f"{sum(c.pods > 0 for c in node.gpus)}/{len(node.gpus)}{''.join(map(_mark, node.gpus))[:1]}"


def _sliced_rows(nodes: Sequence[NodeSummary]) -> list[tuple[str, ...]]:
    """Return how many pods have each GPU in turns, of the most that may."""
    indices = sorted({gpu.index for node in nodes for gpu in node.gpus})
    rows: list[tuple[str, ...]] = [("NAME", "IPADDRESS", *(f"GPU{i}(Allocated/Total)" for i in indices))]
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
    """Return how many units an amount takes, rounded up to whole units."""
    return -(-mib // unit_mib)
