"""Reads the files of a trace: nodes, pods, and the orders in which pods arrive and ties are broken."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

NODES_FILE = "openb_node_list_gpu_node.csv"
PODS_FILE = "openb_pod_list_{}.csv"
ARRIVALS = "arrivals"
SEQUENCE_FILE = "openb_pod_list_{}.seq.csv"
RANKS_FILE = "openb_pod_list_{}.noderank.csv"

INFLATION = 1.3
"""Demand that arrives, as a multiple of the cluster's GPUs."""
_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class TraceError(Exception):
    """A trace that cannot be read; the text says what is expected where."""


@dataclass(frozen=True, slots=True)
class PodShape:
    """What a pod asks for; pods of one shape are alike to every policy."""

    cpu: int
    """Milli-CPU."""
    memory: int
    """MiB."""
    gpus: int
    milli: int
    """Thousandths of each GPU: 1000 unless ``gpus`` is 1; 0 for a pod without GPUs."""
    models: frozenset[str]
    """The GPU models that will do; empty for any."""

    @property
    def demand(self) -> int:
        """Milli-GPU asked for."""
        return self.gpus * self.milli


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes, sorted by name: arrays of shape [nodes]."""

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
    """The pods of one file, sorted by name: arrays of shape [pods]."""

    name: str
    shapes: tuple[PodShape, ...]
    """The distinct shapes."""
    shape: Int64
    """Each pod's index in ``shapes``."""
    lifetime: tuple[Int64, Int64] | None
    """When each pod was created and deleted, in seconds; None where the file does not say."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One order of arrival and the order in which nodes win ties."""

    pods: Int64
    """Indices of pods, in the order of their arrival."""
    rank: Int64
    """Rank of each node: of two nodes with one score the lower rank wins."""


def read_nodes(directory: Path) -> Nodes:
    """Read the list of nodes."""
    rows = sorted(_rows(directory / NODES_FILE, _NODE_COLUMNS), key=lambda row: row["sn"])
    cpu, memory, gpus = (_integers(rows, column, directory / NODES_FILE) for column in _NODE_COLUMNS[1:4])
    return Nodes(cpu, memory, gpus, tuple(row["model"] for row in rows))


def workloads(directory: Path) -> list[str]:
    """Return the names of the workloads in a trace's directory."""
    if not directory.is_dir():
        raise TraceError(f"{directory}: no such directory; it should hold {NODES_FILE} and {PODS_FILE.format('NAME')}")
    before, after = PODS_FILE.split("{}")
    return sorted(path.name[len(before) : -len(after)] for path in directory.glob(PODS_FILE.format("*")))


def read_workload(directory: Path, name: str) -> Workload:
    """Read one list of pods; models and times are optional columns."""
    path = directory / PODS_FILE.format(name)
    rows = sorted(_rows(path, _POD_COLUMNS), key=lambda row: row["name"])
    numbers = [_integers(rows, column, path).tolist() for column in _POD_COLUMNS[1:]]
    index: dict[PodShape, int] = {}
    shape = []
    for row, cpu, memory, gpus, milli in zip(rows, *numbers, strict=True):
        if not gpus >= 0 or not (0 < milli <= 1000 or gpus == 0):
            raise TraceError(f"{path}: pod {row['name']}: {gpus} GPUs of {milli} milli-GPU each")
        models = frozenset(filter(None, (row.get("gpu_spec") or "").split("|")))
        key = PodShape(cpu, memory, gpus, milli if gpus else 0, models if gpus else frozenset())
        shape.append(index.setdefault(key, len(index)))
    lifetime = None
    if rows and rows[0].get("creation_time") is not None and rows[0].get("deletion_time") is not None:
        lifetime = _integers(rows, "creation_time", path), _integers(rows, "deletion_time", path)
    return Workload(name, tuple(index), np.array(shape, np.int64), lifetime)


def read_arrivals(directory: Path, nodes: Nodes, workload: Workload, seed: int) -> Arrivals:
    """Read the orders that the trace gives for a seed; draw what it does not give."""
    drawn = draw_arrivals(nodes, workload, seed)
    folder = directory / ARRIVALS
    pods = _sequence(folder / SEQUENCE_FILE.format(workload.name), seed)
    rank = _sequence(folder / RANKS_FILE.format(workload.name), seed)
    if pods is not None and (pods.min(initial=0) < 0 or pods.max(initial=0) >= len(workload.shape)):
        raise TraceError(f"{folder / SEQUENCE_FILE.format(workload.name)}: seed {seed} names pods that do not exist")
    if rank is not None and len(rank) != len(nodes.gpus):
        raise TraceError(f"{folder / RANKS_FILE.format(workload.name)}: seed {seed} has not one rank a node")
    return Arrivals(drawn.pods if pods is None else pods, drawn.rank if rank is None else rank)


def draw_arrivals(nodes: Nodes, workload: Workload, seed: int) -> Arrivals:
    """Draw an order: every pod once, then pods at random until ``INFLATION`` of the GPUs has been asked for."""
    rng = np.random.default_rng(seed)
    rank = rng.permutation(len(nodes.gpus))
    demand = np.array([shape.demand for shape in workload.shapes], np.int64)[workload.shape]
    order = rng.permutation(len(demand))
    wanted = INFLATION * nodes.milli
    if demand.sum() == 0:
        raise TraceError(f"workload {workload.name}: no pod asks for a GPU")
    while demand[order].sum() < wanted:
        order = np.concatenate([order, rng.integers(len(demand), size=len(demand))])
    return Arrivals(order[: int(np.searchsorted(demand[order].cumsum(), wanted, side="right"))], rank)


def _sequence(path: Path, seed: int) -> Int64 | None:
    """Return the line of a seed: the seed, then its integers."""
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                head, _, tail = line.partition(",")
                if head.strip() == str(seed):
                    return np.array(tail.split(","), np.int64)
    except (OSError, ValueError, OverflowError) as error:  # a text that is not UTF-8 is a ValueError too
        raise TraceError(f"{path}: seed {seed}: {error}") from None
    return None


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.is_file():
        raise TraceError(f"{path}: no such file; it should be a CSV file with the columns {', '.join(columns)}")

    def read() -> Iterator[dict[str, str]]:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in columns if column not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"{path}: no column {', '.join(missing)}; expected {', '.join(columns)}")
            yield from reader

    try:
        return list(read())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: it cannot be read as CSV: {error}") from None


def _integers(rows: list[dict[str, str]], column: str, path: Path) -> Int64:
    try:
        return np.array([int(row[column]) for row in rows], np.int64)
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{path}: column {column} should hold integers") from None
