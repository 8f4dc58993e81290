"""Answers the kubelet's calls for claims: prepares them, releases them, and stores their files.

The devices of a claim are reserved before its files are written, and its CDI file is written last.
If the agent ends before that, the kubelet has no response and retries. A file that already has the
right content is not written again.

The limits of a claim are in its allocation directory, with a mark that it was started, which the
release removes. The kubelet adds a claim to its checkpoint before it asks for the preparation, and
removes the claim after the release. So the limits of a claim that is not in the checkpoint are
outdated.
"""

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import Set
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from gputile.api.core import ObjectReference, Pod
from gputile.api.quantity import MIB
from gputile.api.resource_claims import AllocatedDevice
from gputile.api.well_known import DRIVER, EventReason, Mode
from gputile.kube.errors import KubeError
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.api_server import NodeApi, Wakeup
from gputile.node.agent.cdi import READABLE, CdiFiles, write_changed
from gputile.node.agent.claims.prepare import (
    ClaimRefused,
    answer_of,
    cdi_file,
    cdi_name,
    claim_of,
    prepared_claim,
    request_name,
    with_containers,
)
from gputile.node.agent.claims.slices import device_named
from gputile.node.agent.container_start import ContainerPreparation, NotYet
from gputile.node.agent.device_table import CLAIM_DIRECTORY_PREFIX, Limits, PreparedClaim
from gputile.node.agent.files.allocation_files import BOOT_FILE, NodeFiles, mounts_of
from gputile.node.agent.holdings import hold_claims
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.rules import Occupied, rules_of
from gputile.node.gateway import kubelet_pb2 as dra
from gputile.node.gateway.link import Call, CallAnswer, CallRefused
from gputile.support.files import read_whole

log = logging.getLogger(__name__)

KUBELET_FILE: Final = "dra_manager_state"
_CDI_PREFIX: Final = "gputile.io-claim-"
_MOST_BYTES: Final = 64 * MIB
READ_WITHIN_S: Final = 10.0
FOLLOWED: Final = "another agent serves this node by now"


class _ClaimInfo(msgspec.Struct, rename="pascal"):
    claim_uid: str = msgspec.field(name="ClaimUID")
    driver_state: dict[str, Any] | None = None


class _ClaimInfos(msgspec.Struct, rename="pascal"):
    claim_info_state_list: list[_ClaimInfo] | None = None


class _KubeletState(msgspec.Struct, rename="pascal"):
    data: str
    checksum: int


class ClaimFiles:
    """The files of the claims on a node; ``cdi`` describes its GPUs.

    ``kubelet`` is the kubelet's directory.
    """

    def __init__(self, store: NodeFiles, cdi: CdiFiles | None, kubelet: Path) -> None:
        self.store = store
        self._cdi = cdi
        self._kubelet = kubelet / KUBELET_FILE

    def limits(self) -> dict[str, Limits]:
        """Return the limits of the claims that were started and not released, by UID."""
        found = {}
        for path in self.store.allocations.glob(f"{CLAIM_DIRECTORY_PREFIX}*"):
            limits = self.store.limits(path.name) if (path / BOOT_FILE).exists() else None
            if limits is not None and limits.gpus:
                found[path.name.removeprefix(CLAIM_DIRECTORY_PREFIX)] = limits
        return found

    def kubelet_claims(self) -> set[str] | None:
        """Return the UIDs of the claims in the kubelet's checkpoint; None if it cannot be read."""
        try:
            checkpoint = msgspec.json.decode(
                read_whole(self._kubelet, _MOST_BYTES), type=_KubeletState
            )
            if zlib.crc32(checkpoint.data.encode()) != checkpoint.checksum:
                return None
            found = (
                msgspec.json.decode(checkpoint.data, type=_ClaimInfos).claim_info_state_list or []
            )
        except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
            return None
        return {each.claim_uid for each in found if DRIVER in (each.driver_state or {})}

    def write(self, uid: str, cdi: bytes) -> None:
        """Write a claim's CDI file, unless it is unchanged.

        Raises:
            OSError: it cannot be written.
        """
        if self._cdi is None:
            raise FileNotFoundError("the agent has no directory for CDI files (--cdi-dir)")
        write_changed(self._cdi.directory / f"{_CDI_PREFIX}{uid}.json", cdi, READABLE)

    def remove(self, uid: str) -> None:
        """Remove a claim's mark and CDI file; the reconciler removes its directory.

        Raises:
            OSError: one of the files cannot be removed.
        """
        (self.store.allocations / f"{CLAIM_DIRECTORY_PREFIX}{uid}" / BOOT_FILE).unlink(
            missing_ok=True
        )
        if self._cdi is not None:
            (self._cdi.directory / f"{_CDI_PREFIX}{uid}.json").unlink(missing_ok=True)

    def keep_only(self, uids: Set[str]) -> None:
        """Remove the CDI files of all other claims."""
        for path in (
            self._cdi.directory.glob(f"{_CDI_PREFIX}*.json") if self._cdi is not None else ()
        ):
            if path.name.removeprefix(_CDI_PREFIX).removesuffix(".json") not in uids:
                with contextlib.suppress(OSError):
                    path.unlink()

    def cdi_devices(self, uuid: str) -> tuple[str, ...]:
        """Return the CDI device of a GPU or MIG instance; none if the runtime does not know it."""
        return self._cdi.devices((uuid,)) if self._cdi is not None else ()


class ClaimsDriver:
    """Prepares and releases the claims of one node. ``compare`` wakes the reconciler."""

    def __init__(
        self,
        node: str,
        state: AllocationState,
        files: ClaimFiles,
        preparation: ContainerPreparation,
        cluster: NodeApi,
        compare: Wakeup,
    ) -> None:
        self._node = node
        self._state = state
        self._files = files
        self._preparation = preparation
        self._cluster = cluster
        self._compare = compare
        # Locks by the UID of the claim, so that each claim has one call at a time
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def answer(self, call: Call) -> CallAnswer | CallRefused:
        if not self._files.store.mine:
            return CallRefused(call.number, "UNAVAILABLE", FOLLOWED)
        try:
            match call.method:
                case "NodePrepareResources":
                    return CallAnswer(call.number, await self._prepare_all(call.body))
                case "NodeUnprepareResources":
                    return CallAnswer(call.number, await self._release_all(call.body))
                case unknown:
                    return CallRefused(call.number, "UNIMPLEMENTED", f"there is no {unknown}")
        except Exception as error:
            log.exception("%s", call.method)
            return CallRefused(call.number, "INTERNAL", f"{type(error).__name__}: {error}")

    async def _prepare_all(self, body: bytes) -> bytes:
        asked = dra.NodePrepareResourcesRequest.FromString(body).claims
        # All claims are locked at once: if the pod is deleted, the kubelet cancels this call and
        # releases the claims in any order.
        done = await asyncio.gather(*(self._prepare_answer(each) for each in asked))
        answers = dict(zip((each.uid for each in asked), done, strict=True))
        return dra.NodePrepareResourcesResponse(claims=answers).SerializeToString()

    async def _release_all(self, body: bytes) -> bytes:
        asked = dra.NodeUnprepareResourcesRequest.FromString(body).claims
        errors = {each.uid: await self._release(each.uid) for each in asked}
        answers = {
            uid: dra.NodeUnprepareResourceResponse(error=error) for uid, error in errors.items()
        }
        return dra.NodeUnprepareResourcesResponse(claims=answers).SerializeToString()

    def restore(self) -> None:
        """Restore the claims that previous agents prepared, if the kubelet still has them.

        A reboot removes the CDI files; the kubelet then asks to prepare all claims again. A claim
        whose limits are damaged is not counted here. kube-scheduler still counts its allocation,
        and gives its memory to no other claim.
        """
        limits, wanted = self._files.limits(), self._files.kubelet_claims()
        if wanted is None:
            wanted = set(limits)
        self._files.keep_only(wanted)  # the kubelet may not ask for these claims again
        claims = {uid: claim_of(self._state, uid, limits[uid]) for uid in wanted & limits.keys()}
        hold_claims(self._state, claims)

    async def _prepare_answer(self, asked: dra.Claim) -> dra.NodePrepareResourceResponse:
        try:
            async with self._busy.setdefault(asked.uid, asyncio.Lock()):
                results = await self._prepare(asked)
        except ClaimRefused as error:
            log.error("claim %s/%s is not prepared: %s", asked.namespace, asked.name, error)
            return dra.NodePrepareResourceResponse(error=str(error))
        except (NotYet, KubeError, OSError) as error:
            log.warning("claim %s/%s is not prepared yet: %s", asked.namespace, asked.name, error)
            return dra.NodePrepareResourceResponse(error=str(error) or type(error).__name__)
        finally:
            self._compare.wish()
        return dra.NodePrepareResourceResponse(
            devices=[
                dra.PreparedDevice(
                    request_names=[request_name(each)],
                    pool_name=self._node,
                    device_name=each.device,
                    cdi_device_ids=self._cdi_devices(asked.uid, each.device),
                    share_id=each.share_id or None,
                )
                for each in results
            ]
        )

    def _cdi_devices(self, uid: str, device: str) -> list[str]:
        """Return the CDI devices of the GPU, if the runtime knows it, and of the claim."""
        found = device_named(self._state.node_config, device)
        return [
            *(self._files.cdi_devices(found.uuid) if found is not None else ()),
            cdi_name(uid),
        ]

    async def _prepare(self, asked: dra.Claim) -> tuple[AllocatedDevice, ...]:
        state, before = self._state, self._state.claims.get(asked.uid)
        found = await self._cluster.claim(asked.namespace, asked.name, READ_WITHIN_S)
        if found is None or found.metadata.uid != asked.uid:
            key = f"{asked.namespace}/{asked.name}"
            raise ClaimRefused(f"claim {key} with the UID {asked.uid[:64]} no longer exists")
        try:
            claim = prepared_claim(
                state, found, self._node, before.since_ns if before else time.time_ns()
            )
            pod = await self._pod_of(claim)
            claim = with_containers(state, claim, pod)
            # A prepared claim keeps its devices.
            if before is None or before.shares != claim.shares:
                rules_of(state).check_others(claim)
        except (ClaimRefused, Occupied) as error:
            for each in found.pods:
                about = ObjectReference(
                    api_version="v1",
                    kind="Pod",
                    namespace=asked.namespace,
                    name=each.name,
                    uid=each.uid,
                )
                self._cluster.record(about, EventReason.CLAIM_NOT_PREPARED, str(error), "Warning")
            raise ClaimRefused(str(error)) from error
        hold_claims(state, {**state.claims, claim.uid: claim})
        try:
            await self._write(claim, pod)
            if not self._files.store.mine:  # the next agent may have read the records before
                raise NotYet(FOLLOWED)
        except BaseException:
            if before is None:
                self._drop(claim.uid)
            raise
        return found.gpus

    async def _pod_of(self, claim: PreparedClaim) -> Pod | None:
        """Return the pod that the claim is reserved for, even before the watch reports the pod."""
        known = self._state.pods.get(claim.key)
        if known is not None and known.uid == claim.owner:
            return known.pod
        return await self._cluster.pod(claim.namespace, claim.name, READ_WITHIN_S)

    async def _write(self, claim: PreparedClaim, pod: Pod | None) -> None:
        state = self._state
        threads = known_pod(pod, state.configuration).mps_threads if pod is not None else 0
        answer = answer_of(state.node_config, claim, threads)
        response = self._preparation.response(Mode(claim.mode), answer)
        limits = Limits(
            namespace=claim.namespace,
            pod=claim.name,
            uid=claim.owner,
            container=claim.devices[0].container,
            mode=claim.mode,
            unit_mib=claim.unit_mib,
            gpus=claim.shares,
            phase=claim.devices[0].phase,
            since_ns=claim.since_ns,
            mounts=mounts_of(response),
            claim=claim.claim,
        )
        if not self._preparation.is_started(claim.directory, limits, state):
            self._preparation.prepare(answer, limits)
            if claim.mode == Mode.MPS.value:
                self._compare.wish()  # a daemon for several GPUs starts when they are held
            await self._preparation.start(claim.directory, limits, state)
        seen = (
            (mount.container_path, mount.host_path, mount.read_only) for mount in response.mounts
        )
        self._files.write(claim.uid, cdi_file(claim.uid, response.envs, seen))

    async def _release(self, uid: str) -> str:
        """Release a claim, which may be unknown. Return the error, or "" after a success."""
        if not uid.replace("-", "").isalnum():
            return ""
        async with self._busy.setdefault(uid, asyncio.Lock()):
            try:
                self._files.remove(uid)
            except OSError as error:
                return str(error)
            self._drop(uid)
        self._compare.wish()
        return ""

    def _drop(self, uid: str) -> None:
        left = {key: claim for key, claim in self._state.claims.items() if key != uid}
        hold_claims(self._state, left)
