"""Finds whose containers the kubelet asks for, since no call of the device plugin API says it.

The kubelet admits one pod at a time, and ``List`` shows that pod with containers that have no devices yet; every
other pod has its devices. So the pod is the one that is bound here, asks for GPUs, and lacks them in the list. The
container is the next in the order of admission (init containers and sidecars in the order of the spec, then the
others) that asks for just so many IDs of the resource. An init container is not listed: whether it had its turn is
known from the device table alone. A container that has been started is not meant while one that has not could be, of
this pod or another, even if nothing is known of the other: a kubelet that has forgotten its devices leaves one alone
that runs (``devicesToAllocate`` in pkg/kubelet/cm/devicemanager).

Where more than one pod could be meant, as when a pod was started once without the devices it asked for, the one whose
admission has begun goes first, then pending pods, then the oldest; what the kubelet does is checked against it
afterwards in any case.
"""

from collections.abc import Mapping
from dataclasses import replace

from gputile.core.devices.request import Phase
from gputile.node.agent.allocation_state import ContainerCandidate
from gputile.node.agent.device_ids import ListedPod, Listing
from gputile.node.agent.device_table import DeviceTable
from gputile.node.agent.known_pods import KnownPod


def candidates(
    listing: Listing,
    pods: Mapping[str, KnownPod],
    device_table: DeviceTable,
    resource: str,
    size: int,
    last_uid: str = "",
) -> list[ContainerCandidate]:
    """Return who may be asking for ``size`` IDs of ``resource``, the likeliest first.

    ``pods`` are the pods of this node by key; ``last_uid`` is the pod that was last seen in admission.
    """
    found: list[tuple[tuple[object, ...], ContainerCandidate]] = []
    for key, listed in listing.items():
        pod = pods.get(key)
        bare = _first_bare(listed, resource)
        if pod is None or not pod.alive or (pod.request is None and pod.problem is not None):
            if bare:
                found.append(((2, "", key), ContainerCandidate(key, bare, pod if pod and pod.alive else None)))
            continue
        candidate = _next_container(listed, pod, device_table, resource, size)
        if candidate is not None:
            meta, pending = pod.pod.metadata, pod.pod.status.phase in ("", "Pending")
            rank = 3 if runs_on(candidate, device_table) else 0 if candidate.sure and pending else 1
            found.append(((rank, pod.uid != last_uid, not pending, meta.creation_timestamp or "", key), candidate))
        elif bare and _unlike(listed, pod, resource):
            found.append(((4 if pod.request else 5, "", key), ContainerCandidate(key, bare, known=False)))
    ordered = [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])]
    started = [candidate for candidate in ordered if candidate.known and runs_on(candidate, device_table)]
    if len(started) > 1 and started[0] is ordered[0]:  # only the kubelet's next list tells which of them does not run
        return [*(replace(candidate, container="") for candidate in started), *ordered[len(started) :]]
    return ordered


def runs_on(candidate: ContainerCandidate, device_table: DeviceTable) -> bool:
    """Return whether it is a container that was let start and is left alone, as no init container is."""
    if not candidate.container:
        return True
    uid = candidate.pod.uid if candidate.pod is not None else ""
    init = candidate.request is not None and candidate.request.phase is Phase.INIT
    return not init and device_table.stage_of(uid, candidate.container).may_run


def unlisted_candidates(
    pods: Mapping[str, KnownPod],
    device_table: DeviceTable,
    resource: str,
    size: int,
    last_uid: str = "",
) -> list[ContainerCandidate]:
    """Return who is asking where the kubelet does not answer ``List``; nobody where that is not certain.

    It is the one pod that lacks just that, or the pod of ``last_uid`` whose container has been given its other
    resource: the kubelet asks for all resources of a container one after the other.
    """
    found = []
    for key, pod in pods.items():
        if pod.alive and pod.pod.metadata.deletion_timestamp is None and pod.pod.status.phase in ("", "Pending"):
            listed = ListedPod(pod.pod.metadata.namespace, pod.pod.metadata.name, _held_containers(pod, device_table))
            candidate = _next_container(listed, pod, device_table, resource, size)
            if candidate is not None and candidate.sure:
                guess = replace(candidate, guessed=True)
                found.append((pod.pod.metadata.creation_timestamp or "", key, guess))
    ordered = [candidate for *_, candidate in sorted(found, key=lambda entry: entry[:2])]
    begun = [c for c in ordered if c.pod and c.pod.uid == last_uid and _has_another(c, device_table, resource)]
    return begun or (ordered if len(ordered) == 1 else [])


def _has_another(candidate: ContainerCandidate, device_table: DeviceTable, resource: str) -> bool:
    held = device_table.get(candidate.pod.uid) if candidate.pod else None
    return held is not None and any(
        devices.container == candidate.container and devices.resource != resource for devices in held.devices
    )


def worth_asking(found: list[ContainerCandidate]) -> list[str]:
    """Return the keys to ask the API server about before ``found`` is relied on; none where the answer is clear."""
    sure = [candidate for candidate in found if candidate.sure]
    if len(sure) == 1:
        return []
    return [candidate.key for candidate in found if not candidate.sure]


def _next_container(
    listed: ListedPod, pod: KnownPod, device_table: DeviceTable, resource: str, size: int
) -> ContainerCandidate | None:
    """Return the container of ``pod`` that comes next; one that seems to have had its turn only if nothing else does.

    Those before a container that has devices had their turn, whatever is remembered of them. The kubelet asks for an
    init container twice if it was killed between the answer and its own checkpoint.
    """
    held, again = device_table.get(pod.uid), list[ContainerCandidate]()
    containers = pod.request.containers if pod.request else ()
    reached = max(
        (place for place, container in enumerate(containers) if listed.containers.get(container.name)), default=0
    )
    for container in containers[reached:]:
        demand = pod.demand(container, resource)
        remembered = held is not None and held.container_devices(container.name, resource) is not None
        if demand != size or listed.ids(container.name, resource):
            continue
        ran = device_table.stage_of(pod.uid, container.name).may_run
        if not remembered and not ran:
            return ContainerCandidate(listed.key, container.name, pod, container, sure=True)
        if container.phase is not Phase.INIT and not ran:
            # It was answered before, and the kubelet does not have it: it forgot, or this is another pod of that name.
            return ContainerCandidate(listed.key, container.name, pod, container)
        again.append(ContainerCandidate(listed.key, container.name, pod, container))
    lacking = any(
        pod.demand(container, resource) and not listed.ids(container.name, resource)
        for container in containers
        if container.phase is not Phase.INIT
    )
    return _one_of(again) if lacking or not listed.containers else None


def _one_of(again: list[ContainerCandidate]) -> ContainerCandidate | None:
    """Return which of the containers that had their turn asks again; "" where several were let start: the kubelet asks
    only for those that do not run, and only its next list tells which these are.
    """
    started = [c for c in again if c.request is not None and c.request.phase is not Phase.INIT]
    if len(started) > 1 and started[0] is again[0]:
        return replace(started[0], container="")
    return again[0] if again else None


def _first_bare(listed: ListedPod, resource: str) -> str:
    """Return the first container without IDs after the last one that has some: those before it had their turn."""
    names = list(listed.containers)
    reached = max((place for place, name in enumerate(names, 1) if listed.ids(name, resource)), default=0)
    return next(iter(names[reached:]), "")


def _unlike(listed: ListedPod, pod: KnownPod, resource: str) -> bool:
    bare = [name for name, resources in listed.containers.items() if not resources]
    if pod.request is None:
        return bool(bare)
    names = {container.name for container in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)}
    return any(
        name not in names
        or ((container := pod.container_request(name)) is not None and pod.demand(container, resource) > 0)
        for name in bare
    )


def _held_containers(pod: KnownPod, device_table: DeviceTable) -> dict[str, dict[str, frozenset[str]]]:
    held = device_table.get(pod.uid)
    containers: dict[str, dict[str, frozenset[str]]] = {
        container.name: {} for container in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)
    }
    for devices in held.devices if held else ():
        if devices.container in containers:  # another pod of this name may have had others, under a stand-in
            containers[devices.container][devices.resource] = frozenset(devices.ids)
    return containers
