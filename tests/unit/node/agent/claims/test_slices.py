"""What the slice of a node says, in each mode, and what is noticed of an API server without the feature gates."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gputile.api.core import Node, ObjectMeta
from gputile.api.resource_claims import slice_body
from gputile.api.well_known import Mode
from gputile.node.agent.claims.slices import BUS_ID, UNHEALTHY_TAINT, binary_quantity, device_named, slice_of
from gputile.node.agent.node_config import EffectiveMode, NodeConfig, Sharing, node_config_of
from gputile.node.nvml.gpu_health import Health, HealthState
from gputile.node.nvml.probe import MigInstance, ProbedMachine
from tests.integration.agent.scene import machine

NODE = Node(metadata=ObjectMeta(name="n", uid="node-uid"))
INSTANCE = MigInstance("MIG-1", "1g.10gb", 9728, 3, 0)


def config_of(
    mode: Mode, there: ProbedMachine, sharing: Sharing = Sharing.NONE, health: Health | None = None
) -> NodeConfig:
    return node_config_of(there, health or Health(), EffectiveMode(mode, 1024, sharing, claims=True), None, None)


def body_of(mode: Mode, there: ProbedMachine) -> Any:
    return msgspec.json.decode(msgspec.json.encode(slice_body(slice_of(NODE, config_of(mode, there), there, 16))))


def test_a_shared_gpu_has_memory_in_mebibytes_and_counts_its_pods() -> None:
    body = body_of(Mode.CGPU, machine([24576]))
    assert body["metadata"] == {
        "name": "n-gpu.gputile.io",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid", "controller": True}],
    }
    assert body["spec"]["pool"] == {"name": "n", "generation": 1, "resourceSliceCount": 1}
    assert (body["spec"]["driver"], body["spec"]["nodeName"]) == ("gpu.gputile.io", "n")
    assert body["spec"]["devices"] == [
        {
            "name": "gpu-0",
            "allowMultipleAllocations": True,
            "attributes": {
                "uuid": {"string": "GPU-0"},
                "model": {"string": "Tesla T4"},
                BUS_ID: {"string": "0000:00:00.0"},
                "driverVersion": {"version": "580.1.0"},
                "cudaVersion": {"version": "13.0.0"},
                "index": {"int": 0},
                "shared": {"bool": True},
            },
            "capacity": {
                "memory": {
                    "value": "24Gi",
                    "requestPolicy": {"default": "24Gi", "validRange": {"min": "1Mi", "max": "24Gi", "step": "1Mi"}},
                },
                "pods": {"value": "16", "requestPolicy": {"default": "1", "validValues": ["1"]}},
            },
        }
    ]


def test_compute_is_given_in_steps_of_five_percent_in_mode_core_mem() -> None:
    (device,) = body_of(Mode.CORE_MEM, machine([1024]))["spec"]["devices"]
    assert device["capacity"]["cores"] == {
        "value": "100",
        "requestPolicy": {"default": "100", "validRange": {"min": "5", "max": "100", "step": "5"}},
    }


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.TOPOLOGY])
def test_a_whole_gpu_is_for_one_claim(mode: Mode) -> None:
    (device,) = body_of(mode, machine([1024]))["spec"]["devices"]
    assert "allowMultipleAllocations" not in device
    assert device["attributes"]["shared"] == {"bool": False}
    assert device["capacity"] == {"memory": {"value": "1Gi"}}


def test_mig_instances_stand_where_their_gpu_would() -> None:
    there = machine([81920, 81920, 81920], {1: [INSTANCE, MigInstance("MIG-2", "2g.20gb", 19968, 5, 1)]})
    config = config_of(Mode.EXCLUSIVE, there, Sharing.MIG)
    devices = slice_of(NODE, config, there, 16).spec.devices
    assert [each.name for each in devices] == ["gpu-0", "gpu-1-mig-1", "gpu-1-mig-2", "gpu-2"]
    assert devices[1].attributes["profile"].string_value == "1g.10gb"
    assert devices[1].attributes["uuid"].string_value == "MIG-1"
    assert [device_named(config, each.name) for each in devices] == [
        config.gpu("GPU-0"),
        *config.instances,
        config.gpu("GPU-2"),
    ]


@pytest.mark.parametrize("name", ["", "gpu-", "gpu-1", "gpu-01x", "gpu-9", "card-0", "gpu-1-mig-3", "gpu-0-mig-1"])
def test_a_name_of_no_device_here_names_nothing(name: str) -> None:
    there = machine([81920, 81920], {1: [INSTANCE]})
    assert device_named(config_of(Mode.EXCLUSIVE, there, Sharing.MIG), name) is None


def test_a_sick_gpu_has_a_taint_or_is_left_out() -> None:
    there, sick = machine([1024, 1024]), Health({"GPU-0": HealthState(healthy=False, reason="it is hot")})
    config = config_of(Mode.CGPU, there, health=sick)
    devices = slice_of(NODE, config, there, 16).spec.devices
    assert [[(taint.key, taint.effect) for taint in each.taints] for each in devices] == [
        [(UNHEALTHY_TAINT, "NoSchedule")],
        [],
    ]
    assert [each.name for each in slice_of(NODE, config, there, 16, taints=False).spec.devices] == ["gpu-1"]


def test_what_is_sick_is_left_out_of_a_slice_of_more_devices_than_may_have_taints() -> None:
    """Sixteen GPUs of seven instances. The API server would refuse the slice, and the old one would stay."""
    parts = {i: [MigInstance(f"MIG-{i}-{n}", "1g.10gb", 9728, n, 0) for n in range(7)] for i in range(16)}
    there, sick = machine([81920] * 16, parts), Health({"GPU-0": HealthState(healthy=False, reason="it is hot")})
    healthy, left = (
        slice_of(NODE, config_of(Mode.EXCLUSIVE, there, Sharing.MIG, health), there, 16).spec.devices
        for health in (Health(), sick)
    )
    assert (len(healthy), len(left), any(each.taints for each in left)) == (112, 105, False)


@pytest.mark.parametrize(
    ("bus", "driver", "told"),
    [("00000000:3B:00.0", "535.054.03", ("0000:3b:00.0", "535.54.3")), ("", "unknown", (None, None))],
)
def test_bus_and_driver_are_written_as_others_do(bus: str, driver: str, told: tuple[str | None, str | None]) -> None:
    there = machine([1024])
    there = replace(there, driver=driver, gpus=(replace(there.gpus[0], bus_id=bus, numa=1),))
    there = replace(there, gpus=(replace(there.gpus[0], architecture="Hopper", nvlink_group=0),))
    (device,) = slice_of(NODE, config_of(Mode.CGPU, there), there, 16).spec.devices
    assert device.attributes["architecture"].string_value == "Hopper"
    assert device.attributes["nvlinkGroup"].int_value == 0
    attributes = {name: each.string_value or each.version_value for name, each in device.attributes.items()}
    assert (attributes.get(BUS_ID), attributes.get("driverVersion")) == told
    assert device.attributes["numaNode"].int_value == 1


@pytest.mark.parametrize(
    ("mib", "text"), [(1, "1Mi"), (1024, "1Gi"), (15360, "15Gi"), (15361, "15361Mi"), (1048576, "1Ti")]
)
def test_sizes_are_written_as_the_api_server_does(mib: int, text: str) -> None:
    assert binary_quantity(mib) == text
