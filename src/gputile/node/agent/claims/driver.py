"""Answers the kubelet's calls about claims: prepares them, and releases them.

A claim counts as a holder from before anything is written for it, and its record is written last: an agent that dies in
the middle has promised nothing, and the kubelet asks again. What is there already is not written again.
"""

import asyncio
import logging
import time
from typing import Final
from weakref import WeakValueDictionary

from gputile.api.core import ObjectReference, Pod
from gputile.api.reasons import EventReason
from gputile.api.well_known import Mode
from gputile.kube.errors import KubeError
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import Limits
from gputile.node.agent.api_server import NodeApi, Wakeup
from gputile.node.agent.claims.claim_files import ClaimFiles
from gputile.node.agent.claims.prepare import (
    ClaimRefused,
    answer_of,
    cdi_file,
    cdi_name,
    prepared_claim,
    with_containers,
)
from gputile.node.agent.claims.slices import device_named
from gputile.node.agent.container_start import ContainerPreparation, NotYet, Start
from gputile.node.agent.device_table import PreparedClaim
from gputile.node.agent.holdings import hold_claims
from gputile.node.agent.rules import Occupied, rules_of
from gputile.node.gateway.link import Call, CallAnswer, CallRefused
from gputile.node.gateway.protocols import dra_v1_pb2 as dra

log = logging.getLogger(__name__)

READ_WITHIN_S: Final = 10.0


class ClaimsDriver:
    """The claims of one node. ``compare`` wakes the loop that compares."""

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
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._turn = asyncio.Lock()

    async def answer(self, call: Call) -> CallAnswer | CallRefused:
        if not self._files.store.mine:
            return CallRefused(call.number, "UNAVAILABLE", "another agent serves this node by now")
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
        done = await asyncio.gather(*(self._prepare_answer(each) for each in asked))
        answers = dict(zip((each.uid for each in asked), done, strict=True))
        return dra.NodePrepareResourcesResponse(claims=answers).SerializeToString()

    async def _release_all(self, body: bytes) -> bytes:
        asked = dra.NodeUnprepareResourcesRequest.FromString(body).claims
        errors = {each.uid: await self._release(each.uid) for each in asked}
        answers = {uid: dra.NodeUnprepareResourceResponse(error=error) for uid, error in errors.items()}
        return dra.NodeUnprepareResourcesResponse(claims=answers).SerializeToString()

    def restore(self) -> None:
        """Go on with the claims that were prepared before this agent, as far as the kubelet still has them.

        After a reboot, which takes the CDI files, the kubelet asks for all of them again.
        """
        found, wanted = self._files.records(), self._files.kubelet_claims()
        if wanted is not None:
            found = {uid: claim for uid, claim in found.items() if uid in wanted}
        self._files.keep_only(found.keys())
        hold_claims(self._state, found, time.time_ns())

    async def _prepare_answer(self, asked: dra.Claim) -> dra.NodePrepareResourceResponse:
        try:
            async with self._busy.setdefault(asked.uid, asyncio.Lock()):
                claim = await self._prepare(asked)
        except ClaimRefused as error:
            log.error("claim %s/%s is not prepared: %s", asked.namespace, asked.name, error)
            return dra.NodePrepareResourceResponse(error=str(error))
        except (NotYet, KubeError, OSError) as error:
            log.warning("claim %s/%s is not prepared yet: %s", asked.namespace, asked.name, error)
            return dra.NodePrepareResourceResponse(error=str(error) or type(error).__name__)
        return dra.NodePrepareResourceResponse(
            devices=[
                dra.Device(
                    request_names=[each.request],
                    pool_name=self._node,
                    device_name=each.name,
                    cdi_device_ids=self._cdi_devices(claim, each.name),
                    share_id=each.share_id or None,
                )
                for each in claim.results
            ]
        )

    def _cdi_devices(self, claim: PreparedClaim, device: str) -> list[str]:
        """Return the CDI devices of a result: the GPU's own, as far as the runtime knows one, and the claim's."""
        found = device_named(self._state.node_config, device)
        return [*(self._files.cdi_devices(found.uuid) if found is not None else ()), cdi_name(claim.uid)]

    async def _prepare(self, asked: dra.Claim) -> PreparedClaim:
        state, before = self._state, self._state.claims.get(asked.uid)
        found = await self._cluster.claim(asked.namespace, asked.name, READ_WITHIN_S)
        if found is None or found.metadata.uid != asked.uid:
            key = f"{asked.namespace}/{asked.name}"
            raise ClaimRefused(f"claim {key} with the UID {asked.uid[:64]} is not there any more")
        claim = prepared_claim(state, found, self._node, before.since_ns if before else time.time_ns())
        pod = await self._pod_of(claim)
        async with self._turn:
            await asyncio.sleep(0)  # the answers of those before go out first, however many were asked for together
        claim = with_containers(state, claim, pod)
        try:
            if before is None or before.shares != claim.shares:  # else it has its room, whatever changed since
                rules_of(state).check_claim(claim)
        except Occupied as error:
            about = ObjectReference(
                api_version="v1", kind="Pod", namespace=claim.namespace, name=claim.name, uid=claim.owner
            )
            self._cluster.record(about, EventReason.CLAIM_NOT_PREPARED, str(error), "Warning")
            raise ClaimRefused(str(error)) from error
        self._hold(claim)
        try:
            await self._write(claim)
        except BaseException:
            if before is None:
                self._drop(claim.uid)
            raise
        self._compare.wish()
        return claim

    async def _pod_of(self, claim: PreparedClaim) -> Pod | None:
        """Return the pod of the claim's name; it may be one that the watch has not told of yet."""
        known = self._state.pods.get(claim.key)
        if known is not None and known.uid == claim.owner:
            return known.pod
        return await self._cluster.pod(claim.namespace, claim.name, READ_WITHIN_S)

    async def _write(self, claim: PreparedClaim) -> None:
        state, store, pod = self._state, self._files.store, self._state.pod_of(claim)
        limits = Limits(
            namespace=claim.namespace,
            pod=claim.name,
            uid=claim.owner,
            container=claim.devices[0].container,
            mode=claim.mode,
            unit_mib=claim.unit_mib,
            gpus=claim.shares,
            since_ns=claim.since_ns,
        )
        answer = answer_of(state.node_config, claim, pod.mps_threads if pod is not None else 0)
        response = self._preparation.response(Mode(claim.mode), answer)
        mounts = {mount.container_path: mount.host_path for mount in response.mounts}
        if claim.directory not in state.started or store.limits(claim.directory) != limits:
            start = Start(claim.directory, limits, mounts)
            self._preparation.prepare(answer, start.record)
            self._compare.wish()  # a daemon for several GPUs starts when they are held
            await self._preparation.start(start, state)
        seen = ((mount.container_path, mount.host_path, mount.read_only) for mount in response.mounts)
        self._files.write(claim, cdi_file(claim.uid, response.envs, seen))

    async def _release(self, uid: str) -> str:
        """Release a claim, known or not; return what went wrong, "" if nothing did."""
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

    def _hold(self, claim: PreparedClaim) -> None:
        hold_claims(self._state, {**self._state.claims, claim.uid: claim}, time.time_ns())

    def _drop(self, uid: str) -> None:
        left = {key: claim for key, claim in self._state.claims.items() if key != uid}
        hold_claims(self._state, left, time.time_ns())
