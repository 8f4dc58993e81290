"""Reads the files of a trace: nodes, pods, the pods' order of arrival, and the rank of nodes."""

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gputile.api.quantity import MIB
from gputile.core.devices.inventory import MOST_GPUS
from gputile.support.files import read_bounded

Int64 = npt.NDArray[np.int64]

NODES_FILE = "openb_node_list_gpu_node.csv"
PODS_FILE = "openb_pod_list_{}.csv"
ARRIVALS = "arrivals"
SEQUENCE_FILE = "openb_pod_list_{}.seq.csv"
RANKS_FILE = "openb_pod_list_{}.noderank.csv"

INFLATION = 1.3
"""Demand that arrives, as a multiple of the cluster's GPUs."""
MOST_BYTES = 256 * MIB
"""Of one file."""
MOST_ARRIVALS = 2_000_000
_LARGEST = 10**12
_INTEGER = re.compile(r"[0-9]{1,13}", re.ASCII)
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class TraceError(Exception):
    """The trace cannot be read. The message names the file and the expected content."""


@dataclass(frozen=True, slots=True)
class PodShape:
    """The requests of a pod. Policies do not distinguish pods of the same shape."""

    cpu: int
    """Milli-CPU."""
    memory: int
    """MiB."""
    gpus: int
    milli: int
    """Thousandths of each GPU: 1000 unless ``gpus`` is 1; 0 for a pod without GPUs."""
    models: frozenset[str]
    """The accepted GPU models; empty if all are."""

    @property
    def demand(self) -> int:
        """The requested milli-GPU."""
        return self.gpus * self.milli


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes, sorted by name, as arrays with an element for each node."""

    cpu: Int64
    memory: Int64
    gpus: Int64
    models: tuple[str, ...]

    @property
    def milli(self) -> int:
        """All GPUs, in milli-GPU."""
        return int(self.gpus.sum()) * 1000


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods of one file, sorted by name, as arrays with an element for each pod."""

    name: str
    shapes: tuple[PodShape, ...]
    """The distinct shapes."""
    shape: Int64
    """Each pod's index in ``shapes``."""
    lifetime: tuple[Int64, Int64] | None
    """When each pod was created and deleted, in seconds; None if the file has no times."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An order of arrivals, and the order in which equal nodes are chosen."""

    pods: Int64
    """Indices of pods, in the order of their arrival."""
    rank: Int64
    """Rank of each node: of two nodes with the same score, the lower rank wins."""


def read_nodes(directory: Path) -> Nodes:
    """Read the list of nodes.

    Raises:
        TraceError: the file cannot be read, breaks a rule, or has no GPU.
    """
    path = directory / NODES_FILE
    rows = sorted(_rows(path, _NODE_COLUMNS), key=lambda row: row["sn"])
    cpu, memory = (_integers(rows, column, path) for column in _NODE_COLUMNS[1:3])
    gpus = _integers(rows, "gpu", path, MOST_GPUS)
    if not gpus.any():
        raise TraceError(f"{path}: none of its nodes has a GPU")
    return Nodes(cpu, memory, gpus, tuple(row["model"] for row in rows))


def workloads(directory: Path) -> list[str]:
    """Return the names of the workloads in a trace's directory.

    Raises:
        TraceError: the directory does not exist, or contains no list of pods.
    """
    if not directory.is_dir():
        what = "it is there, and no directory" if directory.exists() else "no such directory"
        raise TraceError(
            f"{directory}: {what}; it should hold {NODES_FILE} and {PODS_FILE.format('NAME')}"
        )
    before, after = PODS_FILE.split("{}")
    found = sorted(
        path.name[len(before) : -len(after)] for path in directory.glob(PODS_FILE.format("*"))
    )
    if not found:
        raise TraceError(
            f"{directory}: it holds no list of pods, {PODS_FILE.format('NAME')}, so there is "
            f"nothing to replay"
        )
    return found


def read_workload(directory: Path, name: str) -> Workload:
    """Read one list of pods. The columns for models and times are optional.

    Raises:
        TraceError: the file cannot be read, or breaks a rule.
    """
    path = directory / PODS_FILE.format(name)
    rows = sorted(_rows(path, _POD_COLUMNS), key=lambda row: row["name"])
    most = {"num_gpu": MOST_GPUS, "gpu_milli": 1000}
    numbers = [
        _integers(rows, column, path, most.get(column, _LARGEST)).tolist()
        for column in _POD_COLUMNS[1:]
    ]
    index: dict[PodShape, int] = {}
    shape = []
    for row, cpu, memory, gpus, milli in zip(rows, *numbers, strict=True):
        if (gpus == 0) != (milli == 0) or (gpus > 1 and milli != 1000):
            raise TraceError(
                f"{path}: line {row['line']}: pod {row['name'][:80]}: {gpus} GPUs of {milli} "
                f"milli-GPU each; a pod "
                f"asks for 1 to 1000 milli-GPU of one GPU, for several whole GPUs (1000 each), or "
                f"for no GPU (0)"
            )
        models = frozenset(filter(None, row.get("gpu_spec", "").split("|")))
        key = PodShape(cpu, memory, gpus, milli if gpus else 0, models if gpus else frozenset())
        shape.append(index.setdefault(key, len(index)))
    lifetime = None
    if all(column in rows[0] for column in ("creation_time", "deletion_time")):
        lifetime = _integers(rows, "creation_time", path), _integers(rows, "deletion_time", path)
        early = np.flatnonzero(lifetime[1] < lifetime[0])
        if len(early):
            row = rows[int(early[0])]
            raise TraceError(
                f"{path}: line {row['line']}: pod {row['name'][:80]} was deleted before it was "
                f"created"
            )
    return Workload(name, tuple(index), np.array(shape, np.int64), lifetime)


def read_arrivals(directory: Path, nodes: Nodes, workload: Workload, seed: int) -> Arrivals:
    """Read the orders of a seed from the trace. Draw an order that the trace does not contain.

    Raises:
        TraceError: a file of orders is invalid, or no order can be drawn.
    """
    drawn = draw_arrivals(nodes, workload, seed)
    folder = directory / ARRIVALS
    pods = _sequence(folder / SEQUENCE_FILE.format(workload.name), seed)
    rank = _sequence(folder / RANKS_FILE.format(workload.name), seed)
    if pods is not None and pods.max(initial=0) >= len(workload.shape):
        raise TraceError(
            f"{folder / SEQUENCE_FILE.format(workload.name)}: seed {seed} names pods that do not "
            f"exist"
        )
    if rank is not None and not np.array_equal(np.sort(rank), np.arange(len(nodes.gpus))):
        raise TraceError(
            f"{folder / RANKS_FILE.format(workload.name)}: seed {seed} has not one rank a node, "
            f"from 0"
        )
    return Arrivals(drawn.pods if pods is None else pods, drawn.rank if rank is None else rank)


def draw_arrivals(nodes: Nodes, workload: Workload, seed: int) -> Arrivals:
    """Draw an order: first every pod once, then random pods until enough GPUs have been requested.

    ``INFLATION`` is this number of GPUs, relative to the cluster.

    Raises:
        TraceError: no pod requests a GPU, or the requests are too small to reach ``INFLATION``.
    """
    rng = np.random.default_rng(seed)
    rank = rng.permutation(len(nodes.gpus))
    demand = np.array([shape.demand for shape in workload.shapes], np.int64)[workload.shape]
    order = rng.permutation(len(demand))
    wanted = INFLATION * nodes.milli
    if demand.sum() == 0:
        raise TraceError(f"workload {workload.name}: no pod asks for a GPU")
    check_arrivals(workload, wanted / float(demand.mean()))
    pieces, asked = [order], int(demand.sum())
    while asked < wanted:
        pieces.append(rng.integers(len(demand), size=len(demand)))
        asked += int(demand[pieces[-1]].sum())
    order = np.concatenate(pieces)
    return Arrivals(
        order[: int(np.searchsorted(demand[order].cumsum(), wanted, side="right"))], rank
    )


def check_arrivals(workload: Workload, arrivals: float) -> None:
    """Check that a replay can have this many arrivals.

    Raises:
        TraceError: there are more than ``MOST_ARRIVALS``.
    """
    if arrivals > MOST_ARRIVALS:
        raise TraceError(
            f"workload {workload.name}: its pods ask for so little of the nodes' GPUs that "
            f"{arrivals:,.0f} would have "
            f"to arrive; {MOST_ARRIVALS:,} are the most that is replayed"
        )


def _sequence(path: Path, seed: int) -> Int64 | None:
    """Return the integers in the line of a seed, or None if the file or the line does not exist."""
    if not path.is_file():
        return None
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not re.fullmatch(r"\s*[0-9]{1,13}(\s*,\s*[0-9]{1,13})+\s*", line, re.ASCII):
            raise TraceError(
                f"{path}: line {number} should be a seed and its integers, with commas between them"
            )
        head, *tail = map(int, line.split(","))
        if head == seed:
            return np.array(tail, np.int64)
    return None


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path}: it cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{path}: it is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the lines of a file, each with its number under "line". The header is line 1."""
    try:
        reader = csv.DictReader(
            io.StringIO(_text(path), newline=""), restkey="more", restval="", strict=True
        )
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(
                f"{path}: no column {', '.join(missing)}; expected {', '.join(columns)}"
            )
        rows = [cells | {"line": str(reader.line_num)} for cells in reader]
    except csv.Error as error:
        raise TraceError(f"{path}: it cannot be read as CSV: {error}") from None
    if not rows:
        raise TraceError(f"{path}: it has a header, and no rows")
    return rows


def _integers(rows: list[dict[str, str]], column: str, path: Path, most: int = _LARGEST) -> Int64:
    for row in rows:
        if not _INTEGER.fullmatch(row[column].strip()) or int(row[column]) > most:
            rule = f"should hold integers from 0 to {most:,}, not {row[column][:40]!r}"
            raise TraceError(f"{path}: line {row['line']}: column {column} {rule}")
    return np.array([int(row[column]) for row in rows], np.int64)
