"""A checkpoint is read as it was written, or not at all."""

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.answers import CONTAINER_DIRECTORY
from gputile.node.agent.files.checkpoint import Checkpoint, CheckpointError, decode_checkpoint, encode_checkpoint
from gputile.node.agent.files.kubelet_checkpoint import recover
from gputile.node.agent.node_config import EffectiveMode, NodeConfig, Sharing
from gputile.node.agent.pod_devices import ContainerDevices, PodDevices
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from tests.fakes.corebuilders import container
from tests.unit.node.agent.test_container_matcher import known

CHECKPOINT = Checkpoint(
    pods=(
        PodDevices(
            "u",
            "ns",
            "a",
            1024,
            "share",
            "ns",
            5,
            (ContainerDevices("main", Phase.APP, GPU_MEMORY, ("g0-00001",), "d"),),
            {0: "GPU-0"},
        ),
    ),
    mode="share",
    unit_mib=1024,
    sharing=Sharing.NONE,
    registered=(GPU_MEMORY,),
)
TEXT = encode_checkpoint(CHECKPOINT)


def test_it_is_read_as_it_was_written() -> None:
    assert decode_checkpoint(TEXT) == CHECKPOINT


@given(st.integers(0, len(TEXT) - 1))
def test_half_a_file_is_no_checkpoint(length: int) -> None:
    with pytest.raises(CheckpointError):
        decode_checkpoint(TEXT[:length])


@given(st.integers(0, len(TEXT) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_found(position: int, change: int) -> None:
    damaged = bytearray(TEXT)
    damaged[position] ^= change
    with contextlib.suppress(CheckpointError):
        assert decode_checkpoint(bytes(damaged)) == CHECKPOINT


@given(st.binary(max_size=60))
def test_junk_is_no_checkpoint(text: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode_checkpoint(text)


def test_a_later_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match="version 2 is not known"):
        decode_checkpoint(TEXT.replace(b'"version":1', b'"version":2'))


def test_the_kubelets_checkpoint_names_containers_that_nothing_else_does() -> None:
    setup = NodeConfig(Inventory((Gpu(0, "GPU-0", 15360),)), EffectiveMode(Mode.SHARE, 1024))
    pod = known("a", container(mem=2), init=(container("init", mem=2),))
    ids = {"-1": ["g0-00003"], "0": ["g0-00001"]}
    entries = [
        {"PodUID": pod.uid, "ContainerName": "init", "ResourceName": GPU_MEMORY, "DeviceIDs": ids, "AllocResp": ""},
        {"PodUID": "gone", "ContainerName": "main", "ResourceName": GPU_MEMORY, "DeviceIDs": ids, "AllocResp": ""},
        {"PodUID": pod.uid, "ContainerName": "main", "ResourceName": "other/thing", "DeviceIDs": {"-1": ["x"]}},
        {"PodUID": pod.uid, "ContainerName": "main", "ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ["what"]}},
    ]
    text = json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 3}).encode()
    found = recover(text, {pod.uid: pod}, setup, 0)
    assert [h.devices for h in found] == [
        (ContainerDevices("init", Phase.INIT, GPU_MEMORY, ("g0-00001", "g0-00003"), f"{pod.uid}-init"),)
    ]
    assert recover(text[:-9], {pod.uid: pod}, setup, 0) == []
    assert recover(b"{}", {pod.uid: pod}, setup, 0) == []


@pytest.mark.requirement("B1")
def test_the_directory_is_that_of_the_answer_which_the_kubelet_keeps() -> None:
    """The container mounts it, even if the answer was meant for another pod."""
    setup = NodeConfig(Inventory((Gpu(0, "GPU-0", 15360),)), EffectiveMode(Mode.SHARE, 1024))
    pod = known("a", container(mem=1))
    mount = pb.Mount(container_path=CONTAINER_DIRECTORY, host_path="/var/lib/gputile/allocations/elsewhere")
    answer = base64.b64encode(pb.ContainerAllocateResponse(mounts=[mount]).SerializeToString()).decode()
    entry = {"PodUID": pod.uid, "ContainerName": "main", "ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ["g0-00001"]}}
    for kept, directory in ((answer, "elsewhere"), ("/w==", f"{pod.uid}-main"), ("", f"{pod.uid}-main")):
        text = json.dumps({"Data": {"PodDeviceEntries": [{**entry, "AllocResp": kept}]}}).encode()
        assert [devices.directory for h in recover(text, {pod.uid: pod}, setup, 0) for devices in h.devices] == [
            directory
        ]


def test_the_format_is_the_one_that_other_agents_read_and_write() -> None:
    """B1: after a downgrade too. The names on the wire stay, whatever they are called here."""
    content = json.loads(TEXT)["content"]
    assert content == {
        "holdings": [
            {
                "uid": "u",
                "namespace": "ns",
                "name": "a",
                "unit_mib": 1024,
                "mode": "share",
                "trust_group": "ns",
                "since_ns": 5,
                "parts": [
                    {
                        "container": "main",
                        "phase": "app",
                        "resource": "aliyun.com/gpu-mem",
                        "ids": ["g0-00001"],
                        "directory": "d",
                        "mounts": None,
                        "guessed": False,
                    }
                ],
                "cards": {"0": "GPU-0"},
                "identified": True,
                "kubelet_uid": "",
            }
        ],
        "mode": "share",
        "unit_mib": 1024,
        "sharing": "none",
        "replicas": 1,
        "registered": ["aliyun.com/gpu-mem"],
    }
