"""A checkpoint is read as it was written, or not at all."""

import base64
import json

import pytest

from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.node.agent.device_table import CONTAINER_DIRECTORY
from gputile.node.agent.files.allocation_files import CHECKPOINT, Checkpoint, CheckpointError, read_checkpoint
from gputile.node.agent.node_config import EffectiveMode, Sharing
from gputile.node.gateway import kubelet_pb2 as pb

SAVED = Checkpoint(EffectiveMode(Mode.SHARE, 1024, Sharing.NONE, 1))


def test_a_file_is_read_as_it_was_written_or_not_at_all() -> None:
    text = CHECKPOINT.encode(SAVED).encode()
    assert CHECKPOINT.decode(text) == SAVED
    for damaged in (text[:-9], text.replace(b'"version":1', b'"version":2'), b"", b"\0" * 100):
        with pytest.raises(CheckpointError):
            CHECKPOINT.decode(damaged)


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
        (found,) = read_checkpoint(entries({**entry, "AllocResp": kept}))[0] or ()
        assert (found.uid, found.container, sorted(found.ids)) == ("u", "init", ["GPU-0::1", "GPU-0::3"])
        assert found.directory == directory


def test_the_kubelets_checkpoint_says_what_other_plugins_offer() -> None:
    assert read_checkpoint(entries()) == ((), {"volcano.sh/vgpu-number": b'["GPU-0-1"]'})


@pytest.mark.parametrize("text", [entries()[:-9], b"{}", b"", b'{"Data": 1}'])
def test_a_kubelets_checkpoint_of_another_format_says_nothing(text: bytes) -> None:
    assert read_checkpoint(text) == (None, {})
