"""IDs name their GPU and slot, and IDs and MiB never disagree, whatever the unit was and whoever came and went."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gputile.core.devices.inventory import Gpu
from gputile.node.agent.device_ids import DeviceIdError, by_gpu, decode, encode
from gputile.node.agent.device_lists import MESSAGE_LIMIT, UnitError, check_unit, free_slots, free_units, message_bytes
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from tests.conftest import examples

UNITS = st.sampled_from((64, 128, 256, 300, 512, 1000, 1024, 2048))


class OneGpu(RuleBasedStateMachine):
    """A kubelet that gives away free IDs of one GPU, pods that come and go, and units that change."""

    @initialize(mib=st.integers(1024, 40_000), unit=UNITS)
    def start(self, mib: int, unit: int) -> None:
        self.mib, self.unit = mib, unit
        self.pods: list[tuple[frozenset[int], int]] = []

    @property
    def held(self) -> set[int]:
        return {slot for slots, _ in self.pods for slot in slots}

    @property
    def held_mib(self) -> int:
        return sum(len(slots) * unit for slots, unit in self.pods)

    @property
    def free(self) -> tuple[int, ...]:
        return free_slots(self.held, free_units(self.mib, self.unit, self.held_mib))

    @rule(size=st.integers(1, 40), data=st.data())
    def a_pod_comes(self, size: int, data: st.DataObject) -> None:
        if size <= len(self.free):
            slots = data.draw(st.permutations(self.free))[:size]
            before = set(self.free)
            self.pods.append((frozenset(slots), self.unit))
            assert set(self.free) == before - set(slots)  # nobody else's ID moves

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
            assert not self.held & set(self.free)

    @invariant()
    def no_more_ids_than_the_smallest_unit_in_use_gives(self) -> None:
        if hasattr(self, "mib"):
            smallest = min([self.unit, *(unit for _, unit in self.pods)])
            assert len(self.held) + len(self.free) <= self.mib // smallest

    @invariant()
    def with_one_unit_the_slots_are_those_of_the_gpu(self) -> None:
        if hasattr(self, "mib") and all(unit == self.unit for _, unit in self.pods):
            assert len(self.held) + len(self.free) == self.mib // self.unit


TestOneGpu = OneGpu.TestCase
TestOneGpu.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(1024, 30_000), min_size=1, max_size=8), st.sampled_from((64, 128, 1024)))
def test_the_message_is_no_longer_than_is_said(sizes: list[int], unit: int) -> None:
    gpus = tuple(Gpu(i, f"GPU-{i}", mib) for i, mib in enumerate(sizes))
    devices = [
        pb.Device(ID=f"g{gpu.index}-{slot:05d}", health="Unhealthy") for gpu in gpus for slot in range(gpu.mib // unit)
    ]
    assert pb.ListAndWatchResponse(devices=devices).ByteSize() <= message_bytes(gpus, unit)


@pytest.mark.parametrize(
    ("sizes", "unit"), [((80 * 1024,) * 8, 64), ((288 * 1024,) * 8, 64), ((15 * 1024,) * 64, 128), ((), 64)]
)
def test_units_that_fit_are_taken(sizes: tuple[int, ...], unit: int) -> None:
    check_unit(tuple(Gpu(i, f"GPU-{i}", mib) for i, mib in enumerate(sizes)), unit)


@given(st.lists(st.integers(300_000, 2_000_000), min_size=8, max_size=16), st.integers(64, 100))
def test_a_unit_that_is_refused_names_the_smallest_valid_one(sizes: list[int], unit: int) -> None:
    gpus = tuple(Gpu(i, f"GPU-{i}", mib) for i, mib in enumerate(sizes))
    try:
        check_unit(gpus, unit)
    except UnitError as error:
        smallest = int(str(error).rpartition(" is ")[2].removesuffix(" MiB"))
        check_unit(gpus, smallest)
        assert smallest == 64 or message_bytes(gpus, smallest - 1) > MESSAGE_LIMIT


INDEX = st.integers(0, 999)
SLOT = st.integers(0, 400_000)


@given(INDEX, SLOT)
def test_an_id_says_its_gpu_and_slot(index: int, slot: int) -> None:
    assert decode(encode(index, slot)) == (index, slot)


@given(st.lists(st.tuples(INDEX, st.integers(0, 99_999)), min_size=2))
def test_ids_of_one_gpu_sort_by_slot(pairs: list[tuple[int, int]]) -> None:
    slots = [slot for index, slot in pairs if index == pairs[0][0]]
    assert [decode(i)[1] for i in sorted(encode(3, slot) for slot in slots)] == sorted(slots)


@given(st.text(max_size=20))
def test_what_is_read_is_what_would_be_written(text: str) -> None:
    try:
        index, slot = decode(text)
    except DeviceIdError:
        return
    assert encode(index, slot) == text


@pytest.mark.parametrize(
    "text", ["", "g1", "g1-412", "g01-00412", "g1-0000412", "G1-00412", "g1-00412 ", "GPU-1", "g-00001"]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(DeviceIdError, match="device ID"):
        decode(text)


@given(st.sets(st.tuples(INDEX, SLOT)))
def test_ids_are_grouped_by_gpu(pairs: set[tuple[int, int]]) -> None:
    grouped = by_gpu(encode(index, slot) for index, slot in pairs)
    assert {(index, slot) for index, slots in grouped.items() for slot in slots} == pairs
    assert list(grouped) == sorted(grouped)
