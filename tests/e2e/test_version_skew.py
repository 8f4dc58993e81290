"""Components of two neighbouring releases on a real node: pods run on, and each reads what the other wrote.

An upgrade exchanges agents node by node and extenders one by one, in any order, and a rollback does the same backwards.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY, HANDOVER_ANNOTATION, MODE_LABEL
from tests.e2e.extender import assert_nothing_over_allocated, why_pending
from tests.e2e.node import GpuNode, gpu_node, probe_pod, told
from tests.localcluster.client import is_ready
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.former_release import former_gputile, former_line
from tests.localcluster.nodeagent import Line
from tests.localcluster.processes import Process
from tests.localcluster.skipping import skip_or_fail
from tests.localcluster.toolchain import ComponentMissing

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("G1", "B1")]
GPUS, UNITS = 4, 15  # of the node


@pytest.fixture(autouse=True, scope="module")
def _former() -> None:
    """Build it before a test's clock runs."""
    try:
        former_gputile()
    except ComponentMissing as missing:
        skip_or_fail(missing)


def settle_more(here: GpuNode, namespace: str, label: str, units: int, left: int) -> None:
    """Create a pod more for each GPU, and see that all run as they were booked.

    None has failed; ledger, kubelet and containers name the same GPUs and limits, whoever wrote them; and a pod that
    asks for ``left`` units finds no place.
    """
    here.create(namespace, *(probe_pod(f"{label}-{number}", {GPU_MEMORY: units}) for number in range(GPUS)))
    there = len(here.pods(namespace))
    here.wait_running(there, namespace)
    assert [told(pod) for pod in here.pods(namespace) if pod["status"]["phase"] == "Failed"] == []
    here.wait_agreement(namespace)
    assert assert_nothing_over_allocated(here.plane) == there
    here.create(namespace, probe_pod("refused", {GPU_MEMORY: left}))
    here.plane.wait(lambda: why_pending(here.plane, namespace, "refused") != "", "the reason why a pod waits")
    here.delete_now(namespace, "refused")


def exchange_agents(here: GpuNode, older: Process, younger: Process, url: str) -> None:
    """Let the younger agent take over as in an update of the DaemonSet, before the older one ends."""
    younger.start()
    here.plane.wait(lambda: is_ready(url), "the younger agent")
    here.plane.wait(
        lambda: HANDOVER_ANNOTATION not in here.node.object()["metadata"].get("annotations", {}),
        "the node to take pods again",
    )
    older.stop()


@contextmanager
def served_node(
    plane: ControlPlane, programs: dict[str, Path], name: str, agent_line: Line = list
) -> Iterator[GpuNode]:
    """Start a node with four GPUs in mode cgpu."""
    with gpu_node(plane, programs, name, {MODE_LABEL: "cgpu"}, kind="fifteen", agent_line=agent_line) as here:
        plane.wait(lambda: here.allocatable().get(GPU_MEMORY) == str(GPUS * UNITS), "the node to offer its GPUs")
        yield here


def test_an_older_agent_serves_what_this_extender_books_and_hands_over(
    control_plane: ControlPlane, node_programs: dict[str, Path], namespace: str
) -> None:
    """Its pods keep their GPUs under this agent, and under the older one again after a rollback."""
    with served_node(control_plane, node_programs, "old-agent", former_line) as here, ExitStack() as agents:
        older = here.agent.process
        for label, units, left, line_of in (("old", 8, 8, list), ("new", 4, 4, former_line), ("back", 3, 1, list)):
            settle_more(here, namespace, label, units, left)
            younger, url = here.agent.successor(line_of)
            exchange_agents(here, older, agents.enter_context(younger), url)
            older = younger
        here.wait_agreement(namespace)
        here.clear(namespace)


def test_an_older_extender_books_for_this_agent_and_its_bookings_hold(
    control_plane: ControlPlane, node_programs: dict[str, Path], namespace: str
) -> None:
    """This extender takes over what it booked, and it takes over from this one after a rollback."""
    with served_node(control_plane, node_programs, "old-extender") as here:
        process = control_plane.processes[here.extender]
        today = process.command
        former = former_line(today)
        for label, units, left, command in (("old", 8, 8, former), ("new", 4, 4, today), ("back", 3, 1, former)):
            process.stop()
            process.command = command
            process.start()
            process.wait_ready(lambda: is_ready(here.extender_url))
            settle_more(here, namespace, label, units, left)
        here.clear(namespace)
