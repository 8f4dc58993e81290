"""Finds whose container the kubelet asks for, since no call of the device plugin API says it.

The kubelet admits one pod at a time, and ``List`` shows that pod with containers that have no devices yet. So the pod
is the one that is bound here, asks for GPUs, and lacks them in the list. The container is the next in the order of
admission that asks for just so many IDs of the resource and for which the kubelet has written none down. One that was
let start is not meant while one that was not could be: a kubelet that has forgotten its devices leaves one alone that
runs (``devicesToAllocate`` in pkg/kubelet/cm/devicemanager). If all containers were let start, the caller is in the
youngest listed pod: a kubelet that has just started admits pods by their age, and does not list those to come.

Nothing depends on the answer but the preferred GPU and what the environment says: ``PreStartContainer`` goes by what
the kubelet has written down.

A call holds up every pod of the node and has no deadline in the kubelet, so each request has one here. The agent waits
for the kubelet's list for up to three seconds, since it takes a while on a busy node, and for half a second if it did
not come the last time. The agent waits longer for the API server, but only for a pod of which nothing else is known:
the kubelet keeps for good what such a pod is given.
"""

import asyncio
import logging
import time
from collections.abc import Set

from gputile.kube.errors import KubeError
from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.device_table import ListedPod, Listing
from gputile.node.agent.files.allocation_files import Records
from gputile.node.agent.holdings import derive, entries, forget_unwritten
from gputile.node.agent.known_pods import KnownPod, answered_pod
from gputile.node.agent.kubelet import KubeletLink

log = logging.getLogger(__name__)

FETCH_WITHIN_S, NEEDED_WITHIN_S = 0.45, 3.0
READ_WITHIN_S, PATIENCE_S, READ_AGAIN_S = 2.0, 10.0, 0.2
MOST_LOOKUPS = 8


class Lookup:
    """Brings the state up to date before a call is decided."""

    def __init__(
        self, state: AllocationState, kubelet: KubeletLink, records: Records, cluster: NodeApi, node: str
    ) -> None:
        self.records = records
        self._state = state
        self._kubelet = kubelet
        self._cluster = cluster
        self._node = node
        self._answers = True

    async def list(self) -> Listing | None:
        """Return what the kubelet lists, None where it does not within a while; the state is brought up to date."""
        listing = await self._kubelet.list(NEEDED_WITHIN_S if self._answers else FETCH_WITHIN_S)
        self._answers = listing is not None
        self._state.record_listing(listing, self._kubelet.state.epoch, settled=self._kubelet.settled)
        self.read_written()
        return listing

    def read_written(self) -> None:
        """Read what the kubelet has written down; a record that cannot be written for it is written later."""
        try:
            self.records.read(self._state, time.time_ns())
        except OSError as error:
            log.error("the agent's state cannot be written, and is written again later: %s", error)

    async def caller(self, resource: str, size: int) -> Caller | None:
        """Return who asks, after reading those pods from the API server that may be the one; None if nobody knows."""
        listing = await self.list()
        forget_unwritten(self._state, resource)
        until = time.monotonic() + PATIENCE_S
        while keys := unclear(self._state, listing, resource, size)[:MOST_LOOKUPS]:
            answered = await asyncio.gather(*(self._read(key) for key in keys))
            known = all(key in self._state.pods for key in keys)
            if known or all(answered) or time.monotonic() > until:
                break
            await asyncio.sleep(READ_AGAIN_S)
        derive(self._state, time.time_ns())
        return next(iter(callers(self._state, listing, resource, size)), None)

    async def _read(self, key: str) -> bool:
        """Read a pod from the API server; return whether it answered, be it that there is none."""
        namespace, _, name = key.partition("/")
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                pod = await self._cluster.pod(namespace, name, READ_WITHIN_S)
        except (KubeError, TimeoutError) as error:
            log.warning("cannot read pod %s: %s", key, error)
            return False
        if pod is not None and pod.spec.node_name == self._node:
            answered_pod(self._state.pods, pod, self._state.configuration)
        return True


Written = Set[tuple[str, str, str]]


def callers(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[Caller]:
    """Return who may be asking for ``size`` IDs of ``resource``, the likeliest first; nobody without a list."""
    written = {(entry.uid, entry.container, entry.resource) for entry in entries(state)}
    found: list[tuple[tuple[object, ...], Caller]] = []
    again: list[tuple[tuple[str, str], Caller]] = []
    for key, listed in (listing or {}).items():
        pod = state.pods.get(key)
        if pod is None or not pod.alive or (pod.request is None and pod.problem is not None):
            if bare := _first_bare(listed, resource):
                found.append(((2, "", key), Caller(key, bare, pod if pod is not None and pod.alive else None)))
        elif (caller := _next(state, listed, pod, written, resource, size)) is not None:
            created, pending = pod.pod.metadata.creation_timestamp or "", pod.pod.status.phase in ("", "Pending")
            if caller.sure:
                found.append(((0 if pending else 1, pod.uid != state.admission.last_uid, created, key), caller))
            else:
                again.append(((created, key), caller))
    found.sort(key=lambda pair: pair[0])
    again.sort(key=lambda pair: pair[0], reverse=True)
    return [caller for _, caller in (*found, *again)]


def unclear(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[str]:
    """Return the keys of pods to read from the API server before the callers are relied on."""
    found = callers(state, listing, resource, size)
    if sum(caller.sure for caller in found) == 1:
        return []
    unlike = [
        key
        for key, listed in (listing or {}).items()
        if (pod := state.pods.get(key)) is not None and pod.alive and _unlike(listed, pod, resource)
    ]
    return list(dict.fromkeys([*(caller.key for caller in found if not caller.sure), *unlike]))


def _next(
    state: AllocationState, listed: ListedPod, pod: KnownPod, written: Written, resource: str, size: int
) -> Caller | None:
    """Return the container of ``pod`` that comes next; those before one that has devices had their turn."""
    containers = pod.request.containers if pod.request is not None else ()
    reached = max((place for place, each in enumerate(containers) if listed.containers.get(each.name)), default=0)
    again = None
    for container in containers[reached:]:
        had = (pod.kubelet_uid, container.name, resource) in written or listed.ids(container.name, resource)
        if had or pod.demand(container, resource) != size:
            continue
        if not state.device_table.runs(pod.uid, container.name):
            return Caller(listed.key, container.name, pod, container, sure=True)
        again = again or Caller(listed.key, container.name, pod, container)
    return again


def _first_bare(listed: ListedPod, resource: str) -> str:
    """Return the first container without IDs after the last one that has some: those before it had their turn."""
    names = list(listed.containers)
    reached = max((place for place, name in enumerate(names, 1) if listed.ids(name, resource)), default=0)
    return next(iter(names[reached:]), "")


def _unlike(listed: ListedPod, pod: KnownPod, resource: str) -> bool:
    """Return whether containers lack devices that the pod known by this name does not ask for, or has been given."""
    bare = [name for name, resources in listed.containers.items() if not resources]
    if pod.request is None:
        return bool(bare)
    names = {container.name for container in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)}
    return any(
        name not in names
        or ((container := pod.container_request(name)) is not None and pod.demand(container, resource) > 0)
        for name in bare
    )
