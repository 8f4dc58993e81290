"""Pods are in the trust groups that the configuration has now, not in those of when they got their devices (G5)."""

from pathlib import Path

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.gpu_health import Health
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.node.agent.allocation import DeviceAllocator
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.cluster.informer import NodeInformer, Wakeups
from gputile.node.agent.container_start import NotYet, prestart
from gputile.node.agent.device_ids import ListedPod
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.node_resources import MachineSeen
from gputile.node.nvml.probe import ProbedMachine
from tests.fakes.agentcluster import NODE, simple_pod
from tests.fakes.corebuilders import container
from tests.unit.node.agent.files.test_records import records_in

pytestmark = pytest.mark.requirement("G5")

APART, TOGETHER = Configuration(), Configuration(trust=Trust(by="cluster"))
GROUPED = Configuration(trust=Trust(groups={"all": ["one", "two"]}))
IDS = {"one": ("g0-00000",), "two": ("g0-00001",)}
CONFIG = NodeConfig(Inventory((Gpu(0, "GPU-0", 8192),), mode="share", unit_mib=1024), EffectiveMode(Mode.SHARE, 1024))


def state_of(configuration: Configuration) -> AllocationState:
    return AllocationState(configuration, CONFIG, DeviceTable())


def bind(state: AllocationState, namespace: str) -> None:
    """Have a pod of a namespace get its devices."""
    pod = simple_pod("a", container(mem=1), namespace=namespace)
    named = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=f"uid-{namespace}"))
    state.pods[pod.key] = known_pod(named, state.configuration)
    listing = {pod.key: ListedPod(namespace, "a", {"main": {}})}
    DeviceAllocator(state, listing, 0.0, 1).allocate(GPU_MEMORY, IDS[namespace], may_wait=True)


def starts(state: AllocationState, namespace: str) -> bool:
    listing = {f"{name}/a": ListedPod(name, "a", {"main": {GPU_MEMORY: frozenset(ids)}}) for name, ids in IDS.items()}
    try:
        return bool(prestart(state, GPU_MEMORY, IDS[namespace], listing, 2))
    except NotYet:
        return False


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        (APART, APART, False),
        (APART, TOGETHER, True),
        (APART, GROUPED, True),
        (GROUPED, TOGETHER, True),
        (TOGETHER, APART, False),
        (GROUPED, APART, False),
        (TOGETHER, GROUPED, True),
    ],
)
@pytest.mark.parametrize("by", ["this agent", "the agent before"])
def test_whom_a_pod_may_join(
    tmp_path: Path, before: Configuration, after: Configuration, by: str, *, may: bool
) -> None:
    state = state_of(before)
    bind(state, "one")
    if by == "this agent":
        NodeInformer(state, Wakeups(), NODE).configure(after)
    else:
        records_in(tmp_path).save(state)
        records, pods = records_in(tmp_path), state.pods
        state = records.starting_state(MachineSeen(ProbedMachine(), Health()), after)
        records.take_over(state)
        state.node_config, state.pods = CONFIG, pods
    bind(state, "two")
    assert starts(state, "two") == may
