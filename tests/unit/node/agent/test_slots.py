"""IDs and MiB never disagree, whatever the unit was and whoever came and went; and the kubelet can read all IDs."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.device_lists import MESSAGE_LIMIT, UnitError, check_unit, devices, message_bytes
from gputile.node.agent.device_table import ContainerDevices, DeviceTable, PodDevices, in_order, part_id
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.gateway import kubelet_pb2 as pb
from tests.conftest import examples

UNITS = st.sampled_from((64, 128, 256, 300, 512, 1000, 1024, 2048))


def memory_of(ids: frozenset[str]) -> ContainerDevices:
    return ContainerDevices("main", Phase.APP, GPU_MEMORY, tuple(ids))


class OneGpu(RuleBasedStateMachine):
    """A kubelet that gives away free IDs of one GPU, pods that come and go, and units that change."""

    @initialize(mib=st.integers(1024, 40_000), unit=UNITS)
    def start(self, mib: int, unit: int) -> None:
        self.mib, self.unit = mib, unit
        self.pods: list[tuple[frozenset[str], int]] = []

    @property
    def held(self) -> set[str]:
        return {each for ids, _ in self.pods for each in ids}

    @property
    def held_mib(self) -> int:
        return sum(len(ids) * unit for ids, unit in self.pods)

    @property
    def free(self) -> tuple[str, ...]:
        return tuple(device_id for device_id in self.listed if device_id not in self.held)

    @property
    def listed(self) -> list[str]:
        config = NodeConfig(Inventory((Gpu(0, "GPU-a", self.mib),)), EffectiveMode(Mode.CGPU, self.unit))
        table = DeviceTable(
            PodDevices(str(number), "default", "p", unit, "cgpu", "default", 0, (memory_of(ids),))
            for number, (ids, unit) in enumerate(self.pods)
        )
        return [device_id for device_id, _ in devices(config, table, {}, GPU_MEMORY)]

    @rule(size=st.integers(1, 40), data=st.data())
    def a_pod_comes(self, size: int, data: st.DataObject) -> None:
        if size <= len(self.free):
            ids = data.draw(st.permutations(self.free))[:size]
            before = set(self.free)
            self.pods.append((frozenset(ids), self.unit))
            assert set(self.free) == before - set(ids)  # nobody else's ID moves

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        self.pods.remove(data.draw(st.sampled_from(self.pods)))

    @rule(unit=UNITS)
    def the_unit_changes(self, unit: int) -> None:
        self.unit = unit

    @invariant()
    def what_is_free_is_really_there(self) -> None:
        if hasattr(self, "mib"):
            assert self.held_mib <= self.mib
            assert self.held_mib + len(self.free) * self.unit <= self.mib
            assert self.held <= set(self.listed)
            assert self.listed == in_order(set(self.listed))

    @invariant()
    def no_more_ids_than_the_smallest_unit_in_use_gives(self) -> None:
        if hasattr(self, "mib"):
            smallest = min([self.unit, *(unit for _, unit in self.pods)])
            assert len(self.held) + len(self.free) <= self.mib // smallest

    @invariant()
    def with_one_unit_the_ids_are_those_of_the_gpu(self) -> None:
        if hasattr(self, "mib") and all(unit == self.unit for _, unit in self.pods):
            assert len(self.held) + len(self.free) == self.mib // self.unit


TestOneGpu = OneGpu.TestCase
TestOneGpu.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def gpus_of(sizes: Sequence[int]) -> tuple[Gpu, ...]:
    """Return GPUs of so many MiB, with UUIDs as long as real ones."""
    return tuple(Gpu(i, f"GPU-{UUID(int=i)}", mib) for i, mib in enumerate(sizes))


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(1024, 30_000), min_size=1, max_size=8), st.sampled_from((64, 128, 1024)))
def test_the_message_is_no_longer_than_is_said(sizes: list[int], unit: int) -> None:
    gpus = gpus_of(sizes)
    listed = [
        pb.Device(ID=part_id(gpu.uuid, number), health="Unhealthy") for gpu in gpus for number in range(gpu.mib // unit)
    ]
    assert pb.ListAndWatchResponse(devices=listed).ByteSize() <= message_bytes(gpus, unit)


@pytest.mark.parametrize(
    ("sizes", "unit"),
    [((288 * 1024,) * 8, 64), ((141 * 1024,) * 16, 64), ((15 * 1024,) * 64, 128), ((), 64)],
)
def test_units_that_fit_are_taken(sizes: tuple[int, ...], unit: int) -> None:
    check_unit(gpus_of(sizes), unit)


@given(st.lists(st.integers(300_000, 2_000_000), min_size=8, max_size=16), st.integers(64, 100))
def test_a_unit_that_is_refused_names_the_smallest_valid_one(sizes: list[int], unit: int) -> None:
    gpus = gpus_of(sizes)
    try:
        check_unit(gpus, unit)
    except UnitError as error:
        smallest = int(str(error).rpartition(" is ")[2].removesuffix(" MiB"))
        check_unit(gpus, smallest)
        assert smallest == 64 or message_bytes(gpus, smallest - 1) > MESSAGE_LIMIT
