"""The kubelet's checkpoint is read as a whole, or not at all."""

import base64
import json

import pytest

from gputile.api.conversion import ConversionError
from gputile.api.well_known import GPU_MEMORY
from gputile.node.agent.device_table import CONTAINER_DIRECTORY
from gputile.node.agent.files.allocation_files import read_checkpoint
from gputile.node.gateway import kubelet_pb2 as pb


def entries(*found: dict[str, object]) -> bytes:
    registered = {GPU_MEMORY: ["GPU-0::1"], "volcano.sh/vgpu-number": ["GPU-0-1"]}
    return json.dumps({"Data": {"PodDeviceEntries": found, "RegisteredDevices": registered}, "Checksum": 3}).encode()


def test_the_kubelets_checkpoint_says_who_has_what_and_mounts_what() -> None:
    """The directory is that of the answer which the kubelet keeps, even if that was meant for another pod."""
    mount = pb.Mount(container_path=CONTAINER_DIRECTORY, host_path="/var/lib/gputile/allocations/elsewhere")
    answer = base64.b64encode(pb.ContainerAllocateResponse(mounts=[mount]).SerializeToString()).decode()
    ids = {"-1": ["GPU-0::3"], "0": ["GPU-0::1"]}
    entry = {"PodUID": "u", "ContainerName": "init", "ResourceName": GPU_MEMORY, "DeviceIDs": ids}
    for kept, directory in ((answer, "elsewhere"), ("/w==", "u-init"), ("", "u-init")):
        (found,) = read_checkpoint(entries({**entry, "AllocResp": kept}))[0]
        assert (found.uid, found.container, sorted(found.ids)) == ("u", "init", ["GPU-0::1", "GPU-0::3"])
        assert found.directory == directory


def test_the_kubelets_checkpoint_says_what_other_plugins_offer() -> None:
    assert read_checkpoint(entries()) == ((), {"volcano.sh/vgpu-number": b'["GPU-0-1"]'})


@pytest.mark.parametrize("text", [entries()[:-9], b"{}", b"", b'{"Data": 1}'])
def test_a_kubelets_checkpoint_of_another_format_is_an_error(text: bytes) -> None:
    with pytest.raises(ConversionError):
        read_checkpoint(text)
