"""What nodes and pods carry: round trips, the rules that a text breaks, and what a node advertises."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gputile.api.conversion import MOST_CHARACTERS
from gputile.api.well_known import Mode
from gputile.core.devices.allocation import (
    Allocation,
    AllocationError,
    GpuShare,
    Reservation,
    allocate,
    binding_annotations,
    decode_allocation,
    encode_allocation,
    encode_reservation,
)
from gputile.core.devices.inventory import (
    Gpu,
    Inventory,
    InventoryError,
    decode_inventory,
    encode_inventory,
    model_label_value,
    model_labels,
    resources_for_mode,
)
from tests.fakes import gpushare_client
from tests.fakes.corebuilders import container, pod, request_of

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
gpus = st.builds(
    Gpu,
    st.integers(0, 63),
    names,
    st.integers(1, 2**24),
    st.text("Tesla V100-", max_size=9),
    st.integers(-1, 7),
    st.booleans(),
)


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    some = draw(st.lists(gpus, max_size=6, unique_by=(lambda c: c.index, lambda c: c.uuid)))
    some.sort(key=lambda gpu: gpu.index)
    links = {(i, j): draw(st.integers(0, 900)) for i in range(len(some)) for j in range(i)}
    rows = tuple(
        tuple(0.0 if i == j else float(links[max(i, j), min(i, j)]) for j in range(len(some))) for i in range(len(some))
    )
    known = draw(st.booleans())
    return Inventory(
        tuple(some), mode=draw(names), unit_mib=draw(st.integers(0, 2048)), bandwidth=rows if known else ()
    )


shares = st.builds(GpuShare, names, st.integers(0, 63), st.integers(0, 2**24), st.integers(0, 100))


def part_of(share: GpuShare) -> st.SearchStrategy[GpuShare]:
    return st.builds(
        GpuShare, st.just(share.uuid), st.just(share.index), st.integers(0, share.mib), st.integers(0, share.percent)
    )


@st.composite
def allocations_that_agree(draw: st.DrawFn) -> Allocation:
    held = draw(st.lists(shares, min_size=1, max_size=4, unique_by=(lambda s: s.uuid, lambda s: s.index)))
    parts = st.lists(st.sampled_from(held).flatmap(part_of), max_size=2).map(tuple)
    return Allocation(
        tuple(held),
        draw(st.dictionaries(names, parts, max_size=2)),
        draw(st.integers(1, 2048)),
        mode=draw(names),
        whole=draw(st.booleans()),
        assumed_ns=draw(st.integers(0, 2**62)),
    )


allocations = allocations_that_agree()


@given(inventories())
def test_an_inventory_reads_back(inventory: Inventory) -> None:
    assert decode_inventory(encode_inventory(inventory)) == inventory


@given(inventories(), st.randoms())
def test_gpus_are_ordered_by_index_and_the_matrix_with_them(inventory: Inventory, random: Any) -> None:
    order = list(range(len(inventory.gpus)))
    random.shuffle(order)
    mixed = msgspec.structs.replace(
        inventory,
        gpus=tuple(inventory.gpus[i] for i in order),
        bandwidth=tuple(tuple(inventory.bandwidth[i][j] for j in order) for i in order) if inventory.bandwidth else (),
    )
    assert decode_inventory(encode_inventory(mixed)) == inventory


@given(allocations)
def test_an_allocation_reads_back(allocation: Allocation) -> None:
    assert decode_allocation(encode_allocation(allocation)) == allocation


def inventory_text(**changes: Any) -> str:
    gpu = {"index": 0, "uuid": "a", "mib": 100}
    return json.dumps({"version": 1, "cards": [gpu, {**gpu, "index": 1, "uuid": "b"}], **changes})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (inventory_text(version=2), "version 2 is not known"),
        (inventory_text(cards=[{"index": 0, "uuid": "a", "mib": 1}] * 2), "two GPUs have the index 0"),
        (
            inventory_text(cards=[{"index": 0, "uuid": "a", "mib": 1}, {"index": 1, "uuid": "a", "mib": 1}]),
            "two GPUs have the UUID a",
        ),
        (inventory_text(cards=[{"index": 0, "uuid": "a", "mib": 0}]), "mib"),
        (inventory_text(cards=[{"index": 64, "uuid": "a", "mib": 1}]), "index"),
        (inventory_text(bandwidth=[[0, 1]]), "must be 2 x 2"),
        (inventory_text(bandwidth=[[0, 1], [2, 0]]), "between GPU 1 and GPU 0 is 2.0 one way, 1.0 the other"),
        (inventory_text(bandwidth=[[0, -1], [-1, 0]]), "is -1.0"),
        (inventory_text(unit_mib=-1), "memory unit -1"),
        (inventory_text(cards=[{"index": i, "uuid": str(i), "mib": 1} for i in range(65)]), "64"),
    ],
)
def test_an_inventory_that_contradicts_itself_says_how(text: str, says: str) -> None:
    with pytest.raises(InventoryError, match=says):
        decode_inventory(text)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 9}, "version 9 is not known; this gputile reads version 1"),
        ({"mode": "a" * MOST_CHARACTERS}, f"more than {MOST_CHARACTERS}"),
        ({"cards": []}, "cards"),
        ({"cards": [{"uuid": "a", "index": 0, "mib": 1}] * 2}, "a GPU is listed twice"),
        ({"cards": [{"uuid": u, "index": 0, "mib": 1} for u in "ab"]}, "a GPU is listed twice"),
        ({"cards": [{"uuid": "a", "index": 0, "mib": -1}]}, "mib"),
        ({"cards": [{"uuid": "a", "index": 0, "mib": 2**24 + 1}]}, "mib"),
        ({"cards": [{"uuid": "a", "index": 64, "mib": 1}]}, "index"),
        ({"containers": {"c": [{"uuid": "b", "index": 0, "mib": 1}]}}, "container c has a GPU that is not among"),
        ({"containers": {"c": [{"uuid": "a", "index": 1, "mib": 1}]}}, "container c has a GPU that is not among"),
        ({"containers": {"c": [{"uuid": "a", "index": 0, "mib": 2}]}}, "container c has more of GPU 0 than the pod"),
        ({"containers": {"c": [{"uuid": "a", "index": 0, "mib": 1, "percent": 5}]}}, "more of GPU 0 than the pod"),
        ({"cards": [{"uuid": "a", "index": 0, "mib": 1, "percent": 101}]}, "percent"),
        ({"unit_mib": 0}, "unit_mib"),
        ({"unit_mib": -1024}, "unit_mib"),
        ({"whole": "yes"}, "whole"),
    ],
)
def test_an_allocation_that_contradicts_itself_says_how(changes: dict[str, Any], says: str) -> None:
    good = {"version": 1, "cards": [{"uuid": "a", "index": 0, "mib": 1}], "containers": {}, "unit_mib": 1024}
    decode_allocation(json.dumps(good))
    with pytest.raises(AllocationError, match=says):
        decode_allocation(json.dumps({**good, **changes}))


@pytest.mark.requirement("B9")
def test_a_binding_carries_what_existing_tools_read_b9() -> None:
    asking = pod("p", container("plain"), container("a", mem=3), container("b", mem=1))
    chosen = (Gpu(2, "GPU-x", 2048),)
    annotations = binding_annotations(allocate(request_of(asking, 128), chosen, "cgpu", 17), chosen, asking)
    assert json.loads(annotations.pop("gputile.io/allocation"))["cards"] == [{"uuid": "GPU-x", "index": 2, "mib": 512}]
    assert json.loads(annotations.pop("scheduler.framework.gpushare.allocation")) == {"1": {"2": 3}, "2": {"2": 1}}
    assert annotations == {
        "gputile.io/memory-unit-mib": "128",
        "ALIYUN_COM_GPU_MEM_IDX": "2",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "17",
    }


@pytest.mark.requirement("B9")
def test_gpushares_one_gpu_annotations_are_left_out_on_several_gpus_b9() -> None:
    asking = pod(mem=4, count=2)
    chosen = tuple(Gpu(i, f"u{i}", 15360) for i in range(2))
    annotations = binding_annotations(allocate(request_of(asking), chosen, "cgpu", 0), chosen, asking)
    assert "ALIYUN_COM_GPU_MEM_IDX" not in annotations
    assert json.loads(annotations["scheduler.framework.gpushare.allocation"]) == {"0": {"0": 2, "1": 2}}


@pytest.mark.requirement("B9")
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from((None, None, False, True))), min_size=1, max_size=6),
       st.integers(1, 3))  # fmt: skip
def test_gpushares_client_reads_what_is_booked(parts: list[tuple[int, bool | None]], count: int) -> None:
    """On one GPU and on several; the client adds up what the containers have, and knows of no init containers."""
    apps = [container(f"c{i}", mem=units * count) for i, (units, side) in enumerate(parts) if side is None]
    init = [container(f"i{i}", mem=units, sidecar=side) for i, (units, side) in enumerate(parts) if side is not None]
    asking = pod("p", *apps, init=init if count == 1 else (), count=count)
    asked = sum(units for units, side in parts if side is None)
    assume(apps and asked)
    chosen = tuple(Gpu(i, f"u{i}", 64 * 1024) for i in range(3, 3 + count))
    written = binding_annotations(allocate(request_of(asking), chosen, "cgpu", 0), chosen, asking)
    meta = {"namespace": "default", "name": "p", "annotations": written}
    body = msgspec.to_builtins(asking) | {"metadata": meta}
    assert gpushare_client.units_by_gpu(body) == dict.fromkeys(range(3, 3 + count), asked)


def test_whole_gpus_carry_the_ledgers_entry_alone() -> None:
    chosen = (Gpu(0, "u", 15360),)
    asking = pod(asks={"nvidia.com/gpu": 1})
    annotations = binding_annotations(allocate(request_of(asking), chosen, "default", 0), chosen, asking)
    assert list(annotations) == ["gputile.io/allocation"]


@pytest.mark.requirement("B1")
def test_the_texts_of_annotations_are_those_of_version_1_byte_by_byte() -> None:
    """Clusters carry such texts: a node or pod that was written to by an older gputile reads the same."""
    shares = (GpuShare("GPU-a", 0, 1024, 5), GpuShare("GPU-b", 3, 2048))
    allocation = Allocation(shares, {"main": shares[:1]}, 1024, mode="core_mem", assumed_ns=7)
    allocation_text = (
        '"cards":[{"uuid":"GPU-a","index":0,"mib":1024,"percent":5},{"uuid":"GPU-b","index":3,"mib":2048}],'
        '"containers":{"main":[{"uuid":"GPU-a","index":0,"mib":1024,"percent":5}]},"unit_mib":1024,"mode":"core_mem"'
        ',"assumed_ns":7}'
    )
    assert encode_allocation(allocation) == '{"version":1,' + allocation_text
    reservation = Reservation("g/1", 3, 4, "n", 7, allocation, first=True)
    assert encode_reservation(reservation) == (
        '{"version":1,"plan":"g/1","size":3,"pods":4,"node":"n","expires_ns":7,"allocation":{'
        + allocation_text
        + ',"first":true}'
    )
    both = (Gpu(0, "GPU-a", 15109, "Tesla V100"), Gpu(1, "GPU-b", 15109, numa=1, healthy=False))
    inventory = Inventory(both, mode="cgpu", unit_mib=128, replicas=2, bandwidth=((0.0, 32.0), (32.0, 0.0)))
    assert encode_inventory(inventory) == (
        '{"version":1,"cards":[{"index":0,"uuid":"GPU-a","mib":15109,"model":"Tesla V100"},'
        '{"index":1,"uuid":"GPU-b","mib":15109,"numa":1,"healthy":false}],"mode":"cgpu","unit_mib":128,"replicas":2,'
        '"bandwidth":[[0.0,32.0],[32.0,0.0]]}'
    )


GPUS = [
    Gpu(0, "a", 15360, "Tesla T4"),
    Gpu(1, "b", 15109, "Tesla T4"),
    Gpu(2, "c", 15360, "Tesla T4", healthy=False),
]


@pytest.mark.requirement("T1", "V1", "U1", "U2")
@pytest.mark.parametrize(
    ("mode", "unit", "memory", "core", "topology", "whole"),
    [
        (Mode.EXCLUSIVE, 1024, 0, 0, 0, 2),
        (Mode.CGPU, 1024, 15 + 14, 0, 0, 0),
        (Mode.SHARE, 128, 120 + 118, 0, 0, 0),
        (Mode.MPS, 20000, 0, 0, 0, 0),
        (Mode.CORE_MEM, 1024, 15 + 14, 200, 0, 0),
        (Mode.TOPOLOGY, 1024, 0, 0, 2, 0),
    ],
)
def test_resources_of_a_mode(mode: Mode, unit: int, memory: int, core: int, topology: int, whole: int) -> None:
    assert resources_for_mode(mode, GPUS, unit) == {
        "aliyun.com/gpu-mem": memory,
        "aliyun.com/gpu-core.percentage": core,
        "aliyun.com/gpu": topology,
        "nvidia.com/gpu": whole,
    }


def test_capacity_counts_unhealthy_gpus_too() -> None:
    assert resources_for_mode(Mode.CORE_MEM, GPUS, 1024, count_unhealthy=True) == {
        "aliyun.com/gpu-mem": 44,
        "aliyun.com/gpu-core.percentage": 300,
        "aliyun.com/gpu": 0,
        "nvidia.com/gpu": 0,
    }


@pytest.mark.parametrize(
    ("model", "value"),
    [
        ("Tesla V100-SXM2-32GB", "Tesla-V100-SXM2-32GB"),
        (" NVIDIA RTX 6000 (Ada) ", "NVIDIA-RTX-6000--Ada"),
        ("x" * 62 + " y", "x" * 62),
        ("", ""),
    ],
)
def test_model_label_value(model: str, value: str) -> None:
    assert model_label_value(model) == value


def test_labels_are_true_of_every_gpu() -> None:
    assert model_labels(GPUS) == {
        "aliyun.accelerator/nvidia_count": "3",
        "aliyun.accelerator/nvidia_name": "Tesla-T4",
        "alpha.kubernetes.io/nvidia-gpu-name": "Tesla-T4",
        "model.gputile.io/Tesla-T4": "3",
    }
    assert model_labels([]) == {}
    assert model_labels([Gpu(0, "a", 1024)]) == {
        "aliyun.accelerator/nvidia_count": "1",
        "aliyun.accelerator/nvidia_mem": "1024MiB",
    }
