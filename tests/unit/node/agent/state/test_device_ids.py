"""A device ID names its GPU and a slot on it, and nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.agent.state.device_ids import DeviceIdError, by_gpu, decode, encode

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
