"""Finds out for which pod and container the kubelet calls ``Allocate``. No call names them.

The kubelet admits one pod at a time. Its ``List`` shows this pod with containers that have no
devices yet. So the calling pod is bound to this node, requests GPUs, and has no devices in the
list. In the order of admission, the calling container is the next one that requests exactly this
number of IDs of the resource, and that has no IDs in the kubelet's checkpoint.

Containers that have not started take precedence. A kubelet that has lost the devices of a running
container requests no new devices for it (``devicesToAllocate`` in pkg/kubelet/cm/devicemanager). If
all candidates have started, the caller is in the youngest listed pod. A kubelet that has just
started admits pods by age, and lists only the pods that it has admitted or is admitting.

The result may be wrong. So it decides only the preferred GPUs and the environment (``allocation``).
``PreStartContainer`` relies on the kubelet's checkpoint, which names each container.
"""

from collections.abc import Set

from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_table import ListedPod, Listing
from gputile.node.agent.known_pods import KnownPod


def callers(
    state: AllocationState, listing: Listing | None, resource: str, size: int
) -> list[Caller]:
    """Return the containers that may request ``size`` IDs of ``resource`` now, most likely first.

    The result is empty if the kubelet's ``listing`` is None.
    """
    written = {(entry.uid, entry.container, entry.resource) for entry in state.written}
    found: list[tuple[tuple[int, bool | str, str, str], Caller]] = []
    again: list[tuple[tuple[str, str], Caller]] = []
    for key, listed in (listing or {}).items():
        pod = state.pods.get(key)
        if pod is None or not pod.alive or pod.invalid:
            if bare := _first_bare(listed, resource):
                # Kubelets before 1.34 also list pods that have finished.
                order = 3 if pod is not None and not pod.alive else 2
                known = pod if pod is not None and pod.alive else None
                found.append(((order, "", "", key), Caller(key, bare, known)))
        elif (caller := _next(state, listed, pod, written, resource, size)) is not None:
            created = pod.pod.metadata.creation_timestamp or ""
            if caller.sure:
                running = pod.pod.status.phase not in ("", "Pending")
                found.append(((int(running), pod.uid != state.last_uid, created, key), caller))
            else:
                again.append(((created, key), caller))
    return [caller for _, caller in (*sorted(found), *sorted(again, reverse=True))]


def unclear(state: AllocationState, listing: Listing | None, resource: str, size: int) -> list[str]:
    """Return the keys of the pods that must be read from the API server to identify the caller."""
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
    state: AllocationState,
    listed: ListedPod,
    pod: KnownPod,
    written: Set[tuple[str, str, str]],
    resource: str,
    size: int,
) -> Caller | None:
    """Return the first container of ``pod`` that may now request ``size`` IDs of ``resource``."""
    containers = pod.containers
    reached = max(
        (place for place, each in enumerate(containers) if listed.containers.get(each.name)),
        default=0,
    )
    again = None
    for container in containers[reached:]:
        had = (pod.kubelet_uid, container.name, resource) in written or listed.ids(
            container.name, resource
        )
        if had or pod.demand(container, resource) != size:
            continue
        if not state.device_table.runs(pod.uid, container.name):
            return Caller(listed.key, container.name, pod, container, sure=True)
        again = again or Caller(listed.key, container.name, pod, container)
    return again


def _first_bare(listed: ListedPod, resource: str) -> str:
    """Return the container after the last container with IDs, or "" if there is none."""
    names = list(listed.containers)
    reached = max(
        (place for place, name in enumerate(names, 1) if listed.ids(name, resource)), default=0
    )
    return next(iter(names[reached:]), "")


def _unlike(listed: ListedPod, pod: KnownPod, resource: str) -> bool:
    """Return whether the listed pod may be newer than the cached ``pod`` of the same name.

    This is possible if a listed container has no devices, and the cached pod requests no GPUs, does
    not have this container, or requests ``resource`` for this container.
    """
    bare = [name for name, resources in listed.containers.items() if not resources]
    names = {
        container.name for container in (*pod.pod.spec.init_containers, *pod.pod.spec.containers)
    }
    return any(
        pod.request is None
        or name not in names
        or pod.demand(pod.container_request(name), resource) > 0
        for name in bare
    )
