"""Encodes the agent's checkpoint, and the records of allocation directories, as versioned texts.

The checkpoint has what is in force and what was served: an agent that starts while the API server is away goes on with
that. A text that is cut off, altered or of an unknown version is refused as a whole.
"""

import hashlib

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.well_known import MODES
from gputile.core.devices.versioned_codec import VersionedCodec
from gputile.node.agent.node_config import Sharing
from gputile.node.agent.pod_devices import AllocationRecord

VERSION = 1


class CheckpointError(ValueError):
    """The text is not a checkpoint that this gputile can read."""


class Checkpoint(msgspec.Struct, frozen=True):
    """``mode`` "" means that nothing was in force yet. ``registered`` are the resources that the agent has served."""

    mode: str = ""
    unit_mib: int = 0
    sharing: Sharing = Sharing.NONE
    replicas: int = 1
    claims: bool = False
    registered: tuple[str, ...] = ()


class _Envelope(msgspec.Struct, frozen=True):
    checksum: str
    content: msgspec.Raw


def _intact(envelope: _Envelope) -> _Envelope:
    if hashlib.sha256(bytes(envelope.content)).hexdigest() != envelope.checksum:
        raise CheckpointError("the checksum does not match")
    return envelope


_ENVELOPE = VersionedCodec(_Envelope, VERSION, CheckpointError, _intact, most=None)
_CHECKPOINT = msgspec.json.Decoder(Checkpoint)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    content = msgspec.json.encode(checkpoint)
    return _ENVELOPE.encode(_Envelope(hashlib.sha256(content).hexdigest(), msgspec.Raw(content))).encode()


def decode_checkpoint(text: bytes) -> Checkpoint:
    """Return the checkpoint in the file's content.

    Raises:
        CheckpointError: it is damaged, or of a version that is not known.
    """
    try:
        checkpoint = decode(_ENVELOPE.decode(text).content, _CHECKPOINT)
    except ConversionError as error:
        raise CheckpointError(str(error)) from error
    if checkpoint.mode and checkpoint.mode not in MODES:
        raise CheckpointError(f"mode {checkpoint.mode!r} is not known")
    return checkpoint


_RECORD = VersionedCodec(AllocationRecord, VERSION, CheckpointError, lambda record: record, most=None)


def encode_record(record: AllocationRecord) -> bytes:
    return _RECORD.encode(record).encode()


def decode_record(text: bytes) -> AllocationRecord:
    """Return what an allocation directory tells of its devices.

    Raises:
        CheckpointError: it is damaged, or of a version that is not known.
    """
    return _RECORD.decode(text)
