"""A checkpoint is read as it was written, or not at all."""

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.well_known import GPU_MEMORY
from gputile.core.devices.request import Phase
from gputile.node.agent.answers import CONTAINER_DIRECTORY
from gputile.node.agent.files.checkpoint import (
    Checkpoint,
    CheckpointError,
    decode_checkpoint,
    decode_record,
    encode_checkpoint,
    encode_record,
)
from gputile.node.agent.files.kubelet_checkpoint import entries_in
from gputile.node.agent.node_config import Sharing
from gputile.node.agent.pod_devices import AllocationRecord
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb

CHECKPOINT = Checkpoint(
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


RECORD = AllocationRecord({GPU_MEMORY: ("GPU-0::1",)}, 1024, 5, (("/in", "/out"),), "ns/a", "u", "main", Phase.INIT)


def test_a_record_is_read_as_it_was_written_or_not_at_all() -> None:
    text = encode_record(RECORD)
    assert decode_record(text) == RECORD
    for damaged in (text[:-9], text.replace(b'"version":1', b'"version":2'), b"", b"\0" * 100):
        with pytest.raises(CheckpointError):
            decode_record(damaged)


def entries(*found: dict[str, object]) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": found, "RegisteredDevices": {}}, "Checksum": 3}).encode()


def test_the_kubelets_checkpoint_says_who_has_what_and_mounts_what() -> None:
    """The directory is that of the answer which the kubelet keeps, even if that was meant for another pod."""
    mount = pb.Mount(container_path=CONTAINER_DIRECTORY, host_path="/var/lib/gputile/allocations/elsewhere")
    answer = base64.b64encode(pb.ContainerAllocateResponse(mounts=[mount]).SerializeToString()).decode()
    ids = {"-1": ["GPU-0::3"], "0": ["GPU-0::1"]}
    entry = {"PodUID": "u", "ContainerName": "init", "ResourceName": GPU_MEMORY, "DeviceIDs": ids}
    for kept, directory in ((answer, "elsewhere"), ("/w==", "u-init"), ("", "u-init")):
        (found,) = entries_in(entries({**entry, "AllocResp": kept})) or ()
        assert (found.uid, found.container, sorted(found.ids)) == ("u", "init", ["GPU-0::1", "GPU-0::3"])
        assert found.directory == directory


@pytest.mark.parametrize("text", [entries()[:-9], b"{}", b"", b'{"Data": 1}'])
def test_a_kubelets_checkpoint_of_another_format_says_nothing(text: bytes) -> None:
    assert entries_in(text) is None
