"""Answers the kubelet's calls: prepares and releases claims, and writes the claims' files.

The devices of a claim are reserved before its files are written, and its CDI file is written last.
If the agent ends before that, the kubelet has no response and retries. A file that already has the
right content is not written again.

The allocation directory of a claim contains its limits and, while the claim is prepared, a mark
(``BOOT_FILE``). The kubelet repeats the request to release a claim until the request succeeds, and
the pod does not end before that. So if the pod of a prepared claim has ended, the kubelet has lost
its state since the claim was prepared.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Final
from weakref import WeakValueDictionary

from gputile.api.core import ObjectReference, Pod
from gputile.api.resource_claims import AllocatedDevice
from gputile.api.well_known import EventReason, Mode
from gputile.kube.errors import KubeError
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.api_server import NodeApi, Wakeup
from gputile.node.agent.cdi import cdi_name
from gputile.node.agent.claims.prepare import (
    ClaimRefused,
    answer_of,
    claim_of,
    containers_of,
    prepared_claim,
    request_name,
    with_containers,
)
from gputile.node.agent.claims.slices import device_named
from gputile.node.agent.container_start import ContainerPreparation, NotYet
from gputile.node.agent.device_table import CLAIM_DIRECTORY_PREFIX, Limits, PreparedClaim
from gputile.node.agent.files.allocation_files import BOOT_FILE, mounts_of
from gputile.node.agent.holdings import replace_prepared_claims
from gputile.node.agent.known_pods import known_pod
from gputile.node.agent.rules import Occupied, rules_of
from gputile.node.gateway import kubelet_pb2 as dra
from gputile.node.gateway.link import Call, CallAnswer, CallRefused

log = logging.getLogger(__name__)

READ_WITHIN_S: Final = 10.0
SERVED_BY_ANOTHER_AGENT: Final = "another agent serves this node by now"


@dataclass
class ClaimsDriver:
    """Prepares and releases the claims of one node. ``compare`` wakes the reconciler."""

    node: str
    state: AllocationState
    preparation: ContainerPreparation
    cluster: NodeApi
    compare: Wakeup

    def __post_init__(self) -> None:
        self._store, self._cdi = self.preparation.store, self.preparation.cdi
        # Locks by the UID of the claim, so that each claim has one call at a time
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def answer(self, call: Call) -> CallAnswer | CallRefused:
        if not self._store.mine:
            return CallRefused(call.number, "UNAVAILABLE", SERVED_BY_ANOTHER_AGENT)
        methods = {
            "NodePrepareResources": self._prepare_all,
            "NodeUnprepareResources": self._release_all,
        }
        try:
            return CallAnswer(call.number, await methods[call.method](call.body))
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
        answers = {
            each.uid: dra.NodeUnprepareResourceResponse(error=await self._release(each.uid))
            for each in asked
        }
        return dra.NodeUnprepareResourcesResponse(claims=answers).SerializeToString()

    def restore(self) -> None:
        """Restore the claims that previous agents prepared and did not release.

        A reboot removes the CDI files, and the kubelet then requests to prepare all claims again. A
        claim whose limits are damaged is not restored. kube-scheduler still counts its allocation,
        and allocates its memory to no other claim.
        """
        state, found = self.state, {}
        for path in self._store.allocations.glob(f"{CLAIM_DIRECTORY_PREFIX}*"):
            limits = self._store.limits(path.name) if (path / BOOT_FILE).exists() else None
            if limits is not None:
                uid = path.name.removeprefix(CLAIM_DIRECTORY_PREFIX)
                found[uid] = claim_of(state, uid, limits)
        replace_prepared_claims(state, found)

    async def release_ended(self) -> None:
        """Release the claims of pods that have ended, because the kubelet has lost these claims.

        The kubelet can lose only claims that were prepared before its start. A claim that another
        pod uses remains, because the kubelet does not request to prepare it again for that pod
        (``claimInfo``). Raises KubeError if a pod cannot be read.
        """
        state, pods = self.state, self.state.pods
        if not pods.listed or not state.listing_complete or not self._store.mine:
            return
        named = {
            (pod.pod.metadata.namespace, name)
            for pod in pods.values()
            if pod.alive
            for _, _, names in containers_of(pod.pod)
            for name in names
        }
        since_s = time.monotonic() - state.kubelet_epoch
        kubelet_start_ns = time.time_ns() - int(since_s * 1e9)
        for claim in tuple(state.claims.values()):
            known = pods.get(claim.key)
            listed = claim.key in state.listing and (known is None or known.uid == claim.owner)
            if (
                claim.since_ns < kubelet_start_ns
                and not listed
                and (claim.namespace, claim.claim) not in named
            ):
                pod = None if claim.owner in pods.gone else await self._pod_of(claim)
                if pod is None or pod.metadata.uid != claim.owner or pod.finished:
                    await self._release(claim.uid, claim)

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
            self.compare.wish()
        return dra.NodePrepareResourceResponse(
            devices=[
                dra.PreparedDevice(
                    request_names=[request_name(each)],
                    pool_name=self.node,
                    device_name=each.device,
                    cdi_device_ids=self._cdi_devices(asked.uid, each.device),
                    share_id=each.share_id or None,
                )
                for each in results
            ]
        )

    def _cdi_devices(self, uid: str, device: str) -> list[str]:
        """Return the CDI devices of the GPU, if the runtime knows them, and of the claim."""
        found = device_named(self.state.node_config, device)
        of_gpu = self._cdi.devices((found.uuid,)) if found and self._cdi else ()
        return [*of_gpu, cdi_name(uid)]

    async def _prepare(self, asked: dra.Claim) -> tuple[AllocatedDevice, ...]:
        state, before = self.state, self.state.claims.get(asked.uid)
        found = await self.cluster.claim(asked.namespace, asked.name, READ_WITHIN_S)
        if found is None or found.metadata.uid != asked.uid:
            key = f"{asked.namespace}/{asked.name}"
            raise ClaimRefused(f"claim {key} with the UID {asked.uid[:64]} no longer exists")
        try:
            claim = prepared_claim(
                state, found, self.node, before.since_ns if before else time.time_ns()
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
                self.cluster.record(about, EventReason.CLAIM_NOT_PREPARED, str(error), "Warning")
            raise ClaimRefused(str(error)) from error
        replace_prepared_claims(state, {**state.claims, claim.uid: claim})
        try:
            await self._write(claim, pod)
            if not self._store.mine:  # the next agent may have read the records too early
                raise NotYet(SERVED_BY_ANOTHER_AGENT)
        except BaseException:
            if before is None:
                self._drop(claim.uid)
            raise
        return found.gpus

    async def _pod_of(self, claim: PreparedClaim) -> Pod | None:
        """Return the claim's pod, read from the API server if the watch has not reported it."""
        known = self.state.pods.get(claim.key)
        if known is not None and known.uid == claim.owner:
            return known.pod
        return await self.cluster.pod(claim.namespace, claim.name, READ_WITHIN_S)

    async def _write(self, claim: PreparedClaim, pod: Pod | None) -> None:
        state = self.state
        threads = known_pod(pod, state.configuration).mps_threads if pod is not None else 0
        answer = answer_of(state.node_config, claim, threads)
        response = self.preparation.response(claim.mode, answer)
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
        if not self.preparation.is_started(claim.directory, limits, state):
            self.preparation.prepare(claim.directory, limits)
            if claim.mode == Mode.MPS:
                self.compare.wish()  # a daemon for several GPUs starts when they are in use
            await self.preparation.start(claim.directory, limits, state)
        if self._cdi is None:
            raise FileNotFoundError("the agent has no directory for CDI files (--cdi-dir)")
        self._cdi.write_claim(claim.uid, response)

    async def _release(self, uid: str, row: PreparedClaim | None = None) -> str:
        """Release a claim, which may be unknown. Return the error, or "" after a success.

        With ``row``, the claim is released only if it has not been prepared again.
        """
        if not uid.replace("-", "").isalnum():
            return ""
        async with self._busy.setdefault(uid, asyncio.Lock()):
            if row is not None and self.state.claims.get(uid) is not row:
                return ""
            try:
                mark = self._store.allocations / f"{CLAIM_DIRECTORY_PREFIX}{uid}" / BOOT_FILE
                mark.unlink(missing_ok=True)
                if self._cdi is not None:
                    self._cdi.remove_claim(uid)
            except OSError as error:
                return str(error)
            self._drop(uid)
        self.compare.wish()
        return ""

    def _drop(self, uid: str) -> None:
        left = {key: claim for key, claim in self.state.claims.items() if key != uid}
        replace_prepared_claims(self.state, left)
