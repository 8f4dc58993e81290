"""What a Node object says of its GPUs, checked."""

import json

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Node, ObjectMeta
from gputile.api.well_known import INVENTORY_ANNOTATION, Mode
from gputile.core.devices.inventory import Inventory, encode_inventory
from gputile.core.ledger.node_info import UNLIMITED_PODS, NodeInfo, ServingMode, node_info_of, unit_in_force
from tests.fakes.corebuilders import gpu_node


def node_info(node: Node) -> NodeInfo:
    return node_info_of(node, Configuration(max_pods_per_gpu=7))


def in_force(mode: str, label: str) -> Node:
    """A node whose agent has ``mode`` in force while its label says something else."""
    node = gpu_node(mode=label)
    inventory = json.loads(node.metadata.annotations[INVENTORY_ANNOTATION])
    meta = msgspec.structs.replace(
        node.metadata, annotations={INVENTORY_ANNOTATION: json.dumps({**inventory, "mode": mode})}
    )
    return msgspec.structs.replace(node, metadata=meta)


@pytest.mark.requirement("M2", "M1", "M3", "M4", "U7", "M5", "M7", "M6", "G5", "T1")
@pytest.mark.parametrize(
    ("label", "mode", "serving_mode", "max_pods_per_gpu", "grouped"),
    [
        pytest.param("", Mode.EXCLUSIVE, ServingMode.WHOLE, UNLIMITED_PODS, False, id="M1 M3 no label"),
        pytest.param("default", Mode.EXCLUSIVE, ServingMode.WHOLE, UNLIMITED_PODS, False, id="M3 default"),
        pytest.param("cgpu", Mode.CGPU, ServingMode.MEMORY, 7, False, id="M4 U7"),
        pytest.param("core_mem", Mode.CORE_MEM, ServingMode.MEMORY_AND_CORE, 7, False, id="M5 U7"),
        pytest.param("mps", Mode.MPS, ServingMode.MEMORY, 7, False, id="M7 U7"),
        pytest.param("share", Mode.SHARE, ServingMode.MEMORY, UNLIMITED_PODS, True, id="M6 G5"),
        pytest.param("topology", Mode.TOPOLOGY, ServingMode.TOPOLOGY, UNLIMITED_PODS, False, id="T1"),
    ],
)
def test_each_mode_serves_one_thing_m2(
    label: str, mode: Mode, serving_mode: ServingMode, max_pods_per_gpu: int, grouped: bool
) -> None:
    said = node_info(gpu_node(mode=label))
    assert (said.mode, said.serving_mode, said.max_pods_per_gpu, said.grouped, said.problem) == (
        mode,
        serving_mode,
        max_pods_per_gpu,
        grouped,
        "",
    )


@pytest.mark.requirement("M12")
def test_the_mode_in_force_goes_before_the_label_m12() -> None:
    assert node_info(in_force("cgpu", "share")).mode is Mode.CGPU
    assert node_info(in_force("cgpu", "unheard-of")).mode is Mode.CGPU  # M2: the mode stays


@pytest.mark.requirement("M2")
def test_a_node_in_a_mode_that_is_not_known_takes_nothing_and_says_why_m2() -> None:
    """Neither by its label nor as whole GPUs: what the agent offers there is anybody's guess."""
    for label in ("", "share"):
        said = node_info(in_force("unheard-of", label))
        assert (said.mode, said.serving_mode, said.inventory.gpus) == (None, ServingMode.NOTHING, ())
        assert said.problem.startswith(f"its annotation {INVENTORY_ANNOTATION} names the mode 'unheard-of', which this")
        assert said.problem.endswith("it knows default, cgpu, core_mem, share, mps, topology")


@pytest.mark.requirement("U1", "U2", "U6", "M1")
@pytest.mark.parametrize(
    ("mode", "mib", "unit", "total"),
    [
        pytest.param("cgpu", 15109, 0, 14 * 1024, id="U1 whole units of 1 GiB"),
        pytest.param("cgpu", 15109, 128, 118 * 128, id="U2 whole units of 128 MiB"),
        pytest.param("core_mem", 15109, 128, 118 * 128, id="U6 every shared mode"),
        pytest.param("cgpu", 100, 128, 0, id="U2 smaller than a unit"),
        pytest.param("", 15109, 128, 15109, id="M1 whole GPUs are whole"),
    ],
)
def test_a_gpu_has_what_its_units_make(mode: str, mib: int, unit: int, total: int) -> None:
    assert node_info(gpu_node(mode=mode, sizes=[mib], unit_mib=unit)).gpu_total(0) == total


@pytest.mark.requirement("M9")
@pytest.mark.parametrize(
    ("label", "placement"), [("", "binpack"), ("binpack", "binpack"), ("spread", "spread"), ("?", "binpack")]
)
def test_the_placement_label_m9(label: str, placement: str) -> None:
    assert node_info(gpu_node(placement=label)).placement == placement


@pytest.mark.requirement("M2")
@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (gpu_node(mode="fast"), "'fast'; valid are default, cgpu, core_mem, share, mps, topology"),
        (gpu_node(mode=""), ""),
        (gpu_node(inventory="{"), "gputile.io/inventory cannot be read"),
        (gpu_node(mode="x" * 500), f"'{'x' * 63}'"),
    ],
)
def test_what_is_wrong_is_said_and_serves_nothing_m2(node: Node, problem: str) -> None:
    said = node_info(node)
    assert problem in said.problem
    assert (said.serving_mode is ServingMode.NOTHING) == bool(problem) == (not said.inventory.gpus)


@pytest.mark.requirement("G6")
@pytest.mark.parametrize(
    ("mode", "advertised", "serving_mode"),
    [
        ("", "8", ServingMode.OTHER_PLUGIN),
        ("default", "8", ServingMode.OTHER_PLUGIN),
        ("cgpu", "8", ServingMode.NOTHING),
        ("", "0", ServingMode.NOTHING),
        ("", "x", ServingMode.NOTHING),
    ],
)
def test_whole_gpus_without_an_inventory_are_another_plugins_g6(
    mode: str, advertised: str, serving_mode: ServingMode
) -> None:
    assert (
        node_info(gpu_node(mode=mode, inventory="", allocatable={"nvidia.com/gpu": advertised})).serving_mode
        is serving_mode
    )


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("units", "unit"), [([], None), ([0], None), ([128], 128), ([128, 256, 256, 0, 0, 0], 256), ([1024, 128], 128)]
)
def test_the_unit_in_force_is_that_of_most_nodes(units: list[int], unit: int | None) -> None:
    """Also while a change of it goes on: the default would be that of none of them."""
    inventories = (encode_inventory(Inventory(gpus=(), mode="share", unit_mib=each)) for each in units)
    nodes = [
        Node(metadata=ObjectMeta(name=f"n{i}", annotations={INVENTORY_ANNOTATION: text}))
        for i, text in enumerate(inventories)
    ]
    assert unit_in_force(nodes) == unit
