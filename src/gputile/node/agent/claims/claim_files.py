"""Keeps the files of prepared claims, and reads which claims the kubelet has.

A claim's record lies in its allocation directory. The kubelet writes a claim into its own checkpoint before it asks to
prepare it, and takes it out after it has been released: a record of a claim that is not there is one of the past.
"""

import contextlib
import logging
import zlib
from collections.abc import Set
from pathlib import Path
from typing import Any, Final

import msgspec

from gputile.api.quantity import MIB
from gputile.api.well_known import DRIVER
from gputile.core.devices.versioned_codec import VersionedCodec
from gputile.node.agent.cdi import CdiFiles
from gputile.node.agent.device_table import CLAIM_DIRECTORY_PREFIX, PreparedClaim
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.support.files import read_whole, write_whole

log = logging.getLogger(__name__)

KUBELET_FILE: Final = "dra_manager_state"
_RECORD_FILE: Final = "claim.json"
_CDI_PREFIX: Final = "gputile.io-claim-"
_PRIVATE: Final = 0o600
_MOST_BYTES: Final = 64 * MIB
VERSION: Final = 1


class ClaimRecordError(ValueError):
    """The text is no record of a prepared claim."""


CLAIM_RECORD = VersionedCodec(PreparedClaim, VERSION, ClaimRecordError, lambda record: record, most=None)


class _ClaimInfo(msgspec.Struct, rename="pascal"):
    claim_uid: str = msgspec.field(name="ClaimUID")
    driver_state: dict[str, Any] | None = None


class _ClaimInfos(msgspec.Struct, rename="pascal"):
    claim_info_state_list: list[_ClaimInfo] | None = None


class _KubeletState(msgspec.Struct, rename="pascal"):
    data: str
    checksum: int


class ClaimFiles:
    """The files of the claims on a node. ``cdi`` describes its GPUs, ``kubelet`` is the kubelet's directory."""

    def __init__(self, store: NodeFiles, cdi: CdiFiles | None, kubelet: Path) -> None:
        self.store = store
        self._cdi = cdi
        self._kubelet = kubelet / KUBELET_FILE

    def records(self) -> dict[str, PreparedClaim]:
        """Return what was prepared, by the claim's UID, without what cannot be read."""
        found = {}
        for path in self.store.allocations.glob(f"{CLAIM_DIRECTORY_PREFIX}*"):
            try:
                claim = CLAIM_RECORD.decode(read_whole(path / _RECORD_FILE, _MOST_BYTES))
            except (OSError, ClaimRecordError):
                continue
            if claim.directory == path.name:
                found[claim.uid] = claim
        return found

    def kubelet_claims(self) -> set[str] | None:
        """Return the UIDs of the claims that the kubelet has or is about to prepare; None where it cannot be read."""
        try:
            checkpoint = msgspec.json.decode(read_whole(self._kubelet, _MOST_BYTES), type=_KubeletState)
            if zlib.crc32(checkpoint.data.encode()) != checkpoint.checksum:
                return None
            found = msgspec.json.decode(checkpoint.data, type=_ClaimInfos).claim_info_state_list or []
        except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        return {each.claim_uid for each in found if DRIVER in (each.driver_state or {})}

    def write(self, claim: PreparedClaim, cdi: bytes) -> None:
        """Write a claim's CDI file, and then its record; what is there already is not written again.

        Raises:
            OSError: it cannot be written.
        """
        if self._cdi is None:
            raise FileNotFoundError("the agent has no directory for CDI files (--cdi-dir)")
        _write(self._cdi.directory / f"{_CDI_PREFIX}{claim.uid}.json", cdi, 0o644)
        _write(self.store.allocations / claim.directory / _RECORD_FILE, CLAIM_RECORD.encode(claim).encode(), _PRIVATE)

    def remove(self, uid: str) -> None:
        """Remove a claim's record and CDI file; its directory goes with those of all containers that have ended.

        Raises:
            OSError: one cannot be removed.
        """
        (self.store.allocations / f"{CLAIM_DIRECTORY_PREFIX}{uid}" / _RECORD_FILE).unlink(missing_ok=True)
        if self._cdi is not None:
            (self._cdi.directory / f"{_CDI_PREFIX}{uid}.json").unlink(missing_ok=True)

    def keep_only(self, uids: Set[str]) -> None:
        """Remove the CDI files of all other claims."""
        for path in self._cdi.directory.glob(f"{_CDI_PREFIX}*.json") if self._cdi is not None else ():
            if path.name.removeprefix(_CDI_PREFIX).removesuffix(".json") not in uids:
                with contextlib.suppress(OSError):
                    path.unlink()

    def cdi_devices(self, uuid: str) -> tuple[str, ...]:
        """Return the CDI device of a GPU or MIG instance; none where the runtime would not know it."""
        return self._cdi.devices((uuid,)) if self._cdi is not None else ()


def _write(path: Path, content: bytes, mode: int) -> None:
    with contextlib.suppress(OSError):
        if read_whole(path, _MOST_BYTES) == content:
            return
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
    write_whole(path, content, mode)
