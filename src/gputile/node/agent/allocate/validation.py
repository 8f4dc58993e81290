"""Whether the IDs that the kubelet chose, or is about to be told to choose, can be served: the same rules for both."""

from collections.abc import Callable, Mapping

from gputile.api.well_known import GPU_CORE, GPU_MEMORY, MIG_PREFIX, Mode
from gputile.core.devices.advertised import CORE_PERCENT
from gputile.node.agent.advertise.device_lists import displaced
from gputile.node.agent.advertise.node_config import NodeConfig
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.pod_devices import ContainerDevices, PodDevices

SHARED_RESOURCES = (GPU_MEMORY, GPU_CORE)


class AllocationConflict(Exception):
    """The kubelet's choice cannot be served; the text goes into the pod's status."""


class Occupied(AllocationConflict):
    """It cannot be served beside those who hold the GPUs now; it can once they have gone."""


def validate(
    setup: NodeConfig,
    holdings: DeviceTable,
    holding: PodDevices,
    container: str,
    resource: str,
    gpus: int,
    most_pods: int,
    still_to_come: Callable[[str], bool],
    *,
    reused: bool = False,
) -> None:
    """Refuse what a container must not start with. ``holding`` is the pod's, with what the container is to get.

    ``gpus`` is the number of GPUs that it asks for. ``still_to_come`` tells of a pod's key whether the kubelet has
    just started and does not list the pod yet: nobody knows then whether it has its devices. ``reused`` says that
    its IDs are those of an init container of the pod: the kubelet takes them in any order, and the pod holds the GPUs
    anyway.

    Raises:
        Occupied: it is only a matter of time.
        AllocationConflict: says which rule is broken.
    """
    part = holding.part(container, resource)
    ids = part.ids if part else ()
    if not setup.offers(resource):
        raise AllocationConflict(
            f"{resource} is not offered here: {setup.withheld or f'the mode is {setup.mode.value}'}"
        )
    taken = [other for other in holdings.holders(resource, ids) if other.uid != holding.uid]
    certain = [other for other in taken if not still_to_come(other.key)]
    if certain:
        raise AllocationConflict(f"device IDs are held by pod {certain[0].key} already")
    mig, slots = resource.startswith(MIG_PREFIX), holding.container_slots(container, resource)
    if mig:
        gone = [i for i in ids if (instance := setup.instance(resource, i)) is None or not instance.healthy]
        if gone:
            raise AllocationConflict(f"MIG instance {gone[0]} is not there or not healthy")
    else:
        _check_gpus(setup, holdings, slots)
    if resource in SHARED_RESOURCES and not reused:
        _check_spread(holding, container, resource, slots, gpus)
    if taken:
        raise Occupied(f"device IDs are held by pod {taken[0].key} already")
    if resource in SHARED_RESOURCES:
        _check_room(setup, holdings, holding, slots)
    if not mig:
        _check_company(setup, holdings, holding, slots, most_pods)


def _check_gpus(setup: NodeConfig, holdings: DeviceTable, slots: Mapping[int, frozenset[int]]) -> None:
    for index in slots:
        gpu = setup.gpu(index)
        if gpu is None:
            raise AllocationConflict(f"GPU {index} is not there any more")
        if not gpu.healthy:
            raise AllocationConflict(f"GPU {index} is unhealthy")
        if displaced(gpu, holdings):
            raise AllocationConflict(f"pods of another GPU hold device IDs of GPU {index}")


def _check_spread(
    holding: PodDevices, container: str, resource: str, slots: Mapping[int, frozenset[int]], gpus: int
) -> None:
    names = ", ".join(f"GPU {index}" for index in slots)
    if len(slots) != gpus:
        raise AllocationConflict(f"the kubelet chose {resource} on {names}; the container asks for {_gpus(gpus)}")
    if len({len(held) for held in slots.values()}) > 1:
        raise AllocationConflict(f"the kubelet chose unequal parts of {resource} on {names}")
    for other in SHARED_RESOURCES:
        there = holding.container_slots(container, other)
        if other != resource and there and there.keys() != slots.keys():
            raise AllocationConflict(f"the container's {other} is on other GPUs than its {resource} on {names}")


def _gpus(number: int) -> str:
    return "one GPU" if number == 1 else f"{number} GPUs"


def check_others(setup: NodeConfig, holdings: DeviceTable, holding: PodDevices, resource: str, most_pods: int) -> None:
    """Refuse what cannot be on its GPUs beside the other ``holdings``: for want of room, or for their sake.

    Raises:
        Occupied: says who or what is in the way.
    """
    slots = holding.slots.get(resource, {})
    if resource.startswith(MIG_PREFIX):
        return
    if resource in SHARED_RESOURCES:
        _check_room(setup, holdings, holding, slots)
    _check_company(setup, holdings, holding, slots, most_pods)


def _check_room(
    setup: NodeConfig, holdings: DeviceTable, holding: PodDevices, slots: Mapping[int, frozenset[int]]
) -> None:
    for index in slots:
        gpu = setup.gpu(index)
        if gpu is None:
            continue
        others, own = holdings.mib(index, holding.uid), holding.mib(index)
        if others + own > gpu.mib:
            raise Occupied(f"GPU {index} has {gpu.mib - others} of {gpu.mib} MiB left, the pod would hold {own}")
        percent = sum(other.percent(index) for other in holdings.on(index, holding.uid)) + holding.percent(index)
        if percent > CORE_PERCENT:
            raise Occupied(f"GPU {index} would have {percent} of {CORE_PERCENT} percent of its compute taken")


def _check_company(
    setup: NodeConfig, holdings: DeviceTable, holding: PodDevices, slots: Mapping[int, frozenset[int]], most_pods: int
) -> None:
    for index in slots:
        others = list(holdings.on(index, holding.uid))
        if not setup.mode.shared and not setup.replicated and others:
            raise Occupied(f"GPU {index} is held by pod {others[0].key}")
        if setup.mode.isolates_memory and len(others) >= most_pods:
            raise Occupied(f"GPU {index} holds {len(others)} pods, the most that a GPU may hold here")
        stranger = stranger_on(setup, holdings, holding, index)
        if stranger is not None:
            raise Occupied(f"GPU {index} is used by pod {stranger.key} of another trust group, without isolation")


def given_twice(setup: NodeConfig, holdings: DeviceTable, holding: PodDevices, part: ContainerDevices) -> str:
    """Return why a container must not start with IDs that another pod holds too, "" where it may.

    The kubelet can give the same IDs to two pods; see ``allocation``. An ID of memory or compute is a name, and each of
    the pods has its own limits: there it is enough that the GPU has room for both.
    """
    others = [other for other in holdings.holders(part.resource, part.ids) if other.uid != holding.uid]
    if not others:
        return ""
    who = f"the kubelet has given {part.ids[0]} to pod {others[0].key} too"
    if setup.replicated and not part.resource.startswith(MIG_PREFIX):
        return ""
    if part.resource not in SHARED_RESOURCES:
        return f"{who}: delete one of the two pods, so that it is admitted anew"
    try:
        _check_room(setup, holdings, holding, holding.container_slots(part.container, part.resource))
    except AllocationConflict as error:
        return f"{who}, and {error}: delete one of the two pods, so that it is admitted anew"
    return ""


def stranger_on(setup: NodeConfig, holdings: DeviceTable, holding: PodDevices, index: int) -> PodDevices | None:
    """Return a pod on the GPU that ``holding`` must not share it with; unknown pods are judged once they are known."""
    if not (setup.mode is Mode.SHARE or setup.replicated) or not holding.identified:
        return None
    others = (other for other in holdings.on(index, holding.uid) if other.identified)
    return next((other for other in others if other.trust_group != holding.trust_group), None)
