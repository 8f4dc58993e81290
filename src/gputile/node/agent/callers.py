"""Identifies the container for which the kubelet calls.

The calls of the device plugin API do not name the container. The kubelet admits one pod at a time,
and ``List`` shows that pod with containers that have no devices yet. So the pod is bound here,
requests GPUs, and has none in the list. The container is the next one in the order of admission
that requests exactly this number of IDs of the resource and has none in the kubelet's checkpoint.
Containers that have not started yet take precedence over those that have: a kubelet that has
forgotten the devices of a running container requests no new ones for it (``devicesToAllocate`` in
pkg/kubelet/cm/devicemanager). If all containers have started, the caller is in the youngest listed
pod: a kubelet that has just started admits pods by age, and does not list those that it has yet to
admit. The caller only determines the preferred GPU and the environment: ``PreStartContainer``
relies on the kubelet's checkpoint.
"""

from collections.abc import Set

from gputile.node.agent.allocation_state import AllocationState, Caller
from gputile.node.agent.device_table import ListedPod, Listing
from gputile.node.agent.known_pods import KnownPod


def callers(
    state: AllocationState, listing: Listing | None, resource: str, size: int
) -> list[Caller]:
    """Return the possible callers for ``size`` IDs of ``resource``, the likeliest first.

    There are none without a listing.
    """
    written = {(entry.uid, entry.container, entry.resource) for entry in state.written}
    found: list[tuple[tuple[object, ...], Caller]] = []
    again: list[tuple[tuple[str, str], Caller]] = []
    for key, listed in (listing or {}).items():
        pod = state.pods.get(key)
        if pod is None or not pod.alive or pod.invalid:
            if bare := _first_bare(listed, resource):
                found.append(
                    (
                        (2, "", key),
                        Caller(key, bare, pod if pod is not None and pod.alive else None),
                    )
                )
        elif (caller := _next(state, listed, pod, written, resource, size)) is not None:
            created = pod.pod.metadata.creation_timestamp or ""
            pending = pod.pod.status.phase in ("", "Pending")
            if caller.sure:
                found.append(
                    ((0 if pending else 1, pod.uid != state.last_uid, created, key), caller)
                )
            else:
                again.append(((created, key), caller))
    found.sort(key=lambda pair: pair[0])
    again.sort(key=lambda pair: pair[0], reverse=True)
    return [caller for _, caller in (*found, *again)]


def _next(
    state: AllocationState,
    listed: ListedPod,
    pod: KnownPod,
    written: Set[tuple[str, str, str]],
    resource: str,
    size: int,
) -> Caller | None:
    """Return the next container of ``pod``; those before one with devices have been admitted."""
    containers = pod.request.containers if pod.request is not None else ()
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
    """Return the first container after the last one with IDs; earlier ones have been admitted."""
    names = list(listed.containers)
    reached = max(
        (place for place, name in enumerate(names, 1) if listed.ids(name, resource)), default=0
    )
    return next(iter(names[reached:]), "")
