"""A planner ahead of kube-scheduler, as far as it takes to measure one: it nominates a node for each waiting pod.

It is a process of its own with the extender's placement engine. It knows nodes and pods before the clock starts, as if
from informers, books each choice in its own ledger alone, and writes it into the pod's ``status.nominatedNodeName``.
"""

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

import httpx2 as httpx
import msgspec
from tests.localcluster.client import Api, ApiError
from tests.localcluster.controlplane import ControlPlane

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, Pod
from gputile.core.ledger.events import NodeApplied
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.assume import BindTime, assume
from gputile.core.scheduling.placement_engine import PlacementEngine

WRITERS = 8


@dataclass(frozen=True, slots=True)
class PlannerAhead:
    """A running planner; ``pid`` is its process."""

    pid: int
    _go: Connection

    def go(self) -> None:
        """Let it plan and write, beside whatever runs."""
        self._go.send(None)


@contextmanager
def planner_ahead(plane: ControlPlane, pods: str) -> Iterator[PlannerAhead]:
    """Start a planner for the pods below the path ``pods``, and wait until it knows the cluster.

    Raises:
        RuntimeError: it has failed, so that something else was measured.
    """
    go, told = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process: ForkProcess = context.Process(target=_run, args=(plane, pods, told), daemon=True)
    process.start()
    told.close()  # so that its end is noticed here
    try:
        go.recv()
        assert process.pid is not None
        yield PlannerAhead(process.pid, go)
    finally:
        with suppress(BrokenPipeError):
            go.send(None)
        process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the planner ended with {process.exitcode}; its error is above")


def _run(plane: ControlPlane, path: str, told: Connection) -> None:
    """Read the cluster, plan when told to, and end when told again."""
    with Api(plane.url, str(plane.ca), plane.identity("admin")) as api:
        engine = PlacementEngine(Ledger(Configuration()))
        for node in msgspec.convert(api.get("/api/v1/nodes")["items"], list[Node]):
            engine.ledger.apply(NodeApplied(node))
        names = list(engine.ledger.row_of)
        pods = msgspec.convert(api.get(path)["items"], list[Pod])
        pods.sort(key=lambda pod: int(pod.metadata.resource_version))  # kube-scheduler's queue is in this order, too
        told.send(None)
        told.recv()
        with ThreadPoolExecutor(WRITERS) as pool:
            written = []
            for pod in pods:
                place = _place(engine, pod, names)
                if place is not None:
                    written.append(pool.submit(_nominate, api, f"{path}/{pod.metadata.name}/status", place))
        for each in written:
            each.result()
        told.recv()


def _place(engine: PlacementEngine, pod: Pod, names: list[str]) -> str | None:
    """Return the best node for a pod, whose GPUs are booked for it; None where it fits nowhere."""
    request = engine.request(pod)
    if request is None or not (fitting := engine.best_first(request, names)):
        return None
    assume(engine, pod, request, fitting[0], BindTime(time.time_ns(), time.monotonic()))
    return fitting[0]


def _nominate(api: Api, path: str, node: str) -> None:
    """Write the node, unless kube-scheduler has bound the pod meanwhile: the API server then refuses it."""
    try:
        api.patch(path, {"status": {"nominatedNodeName": node}})
    except ApiError as error:
        if error.status != httpx.codes.UNPROCESSABLE_ENTITY or "already bound" not in str(error):
            raise
