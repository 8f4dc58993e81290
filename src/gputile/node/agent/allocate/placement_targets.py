"""Where a container should go: to the cards its pod is on already, then to the booked ones, then where it fits now.

The booking can be out of date: the card may have failed, or the kubelet may have put another pod there. A pod
can have no booking at all: a static pod, or one whose node was named by hand. Then the very rules that the scheduler
follows choose from what is free now, and the annotation is written afterwards.
"""

from collections.abc import Callable, Iterator, Mapping

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, MIG_PREFIX, TOPOLOGY_GPU, Mode
from gputile.core.devices.request import RequestKind, Shape
from gputile.node.agent.advertise.device_lists import displaced
from gputile.node.agent.advertise.node_config import NodeConfig
from gputile.node.agent.allocate.container_matcher import ContainerCandidate
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.free_capacity import FreeCapacity, node_info
from gputile.node.agent.allocate.known_pods import KnownPod
from gputile.node.agent.allocate.pod_devices import PodDevices
from gputile.node.agent.allocate.preferred_allocation import (
    Slots,
    booked_indices,
    on_some_card,
    replicas,
    spread_evenly,
)
from gputile.node.agent.allocate.validation import SHARED_RESOURCES, stranger_on

Servable = Callable[[tuple[str, ...]], bool]


class PlacementTargets:
    """One choice of device IDs, on the state of the node at this moment."""

    def __init__(
        self,
        setup: NodeConfig,
        holdings: DeviceTable,
        pods: Mapping[str, KnownPod],
        labels: Mapping[str, str],
        configuration: Configuration,
    ) -> None:
        self._setup = setup
        self._holdings = holdings
        self._pods = pods
        self._labels = labels
        self._configuration = configuration

    def choose(
        self,
        holding: PodDevices,
        candidate: ContainerCandidate | None,
        resource: str,
        available: Slots,
        must: Slots,
        size: int,
        servable: Servable,
    ) -> tuple[str, ...]:
        """Return the IDs for the container of ``candidate``, whose pod holds ``holding`` so far.

        The first set that is ``servable`` is taken. Where none is, the answer is IDs of as few cards as possible, and
        the check at ``Allocate`` says what is wrong with them.
        """
        if resource.startswith(MIG_PREFIX):
            return on_some_card(size, available, must)
        usable = [c.index for c in self._setup.inventory.cards if c.healthy and not displaced(c, self._holdings)]
        if self._setup.replicated:
            friendly = [i for i in usable if stranger_on(self._setup, self._holdings, holding, i) is None]
            shares = candidate.pod.booked(candidate.container) if candidate and candidate.pod else ()
            booked = booked_indices(self._setup, (share.uuid for share in shares))
            ids = spread_evenly(size, booked, available, must) if set(booked) <= set(friendly) else None
            if ids is not None and servable(ids):
                return ids
            return replicas(size, available, must, self._room(""), friendly)
        for indices in self._options(holding, candidate, resource, available, must, size, usable):
            ids = spread_evenly(size, indices, available, must)
            if ids is not None and servable(ids):
                return ids
        return on_some_card(size, {i: available[i] for i in usable if i in available}, must)

    def _options(
        self,
        holding: PodDevices,
        candidate: ContainerCandidate | None,
        resource: str,
        available: Slots,
        must: Slots,
        size: int,
        usable: list[int],
    ) -> Iterator[tuple[int, ...]]:
        pod = candidate.pod if candidate else None
        booked = pod.booked(candidate.container) if pod and candidate else ()
        if resource not in SHARED_RESOURCES:
            yield booked_indices(self._setup, (share.uuid for share in booked))
            free = [i for i in usable if available.get(i) and i not in must]
            kind = RequestKind.TOPOLOGY if resource == TOPOLOGY_GPU else RequestKind.WHOLE
            chosen = self._room(holding.uid).choose(Shape(kind, size - len(must)), "", free) if size > len(must) else ()
            if chosen is not None:
                yield tuple(sorted((*must, *chosen)))
            return
        yield tuple(sorted(holding.indices))
        yield booked_indices(self._setup, (share.uuid for share in booked))
        if pod and pod.allocation:
            yield booked_indices(self._setup, (share.uuid for share in pod.allocation.cards))
        room = self._room(holding.uid)
        for shape in self._shapes(holding, candidate, resource, size):
            each = -(-size // shape.cards)
            enough = [i for i in usable if len(available.get(i, ())) >= each]
            chosen = room.choose(shape, holding.trust_group, enough)
            if chosen is not None:
                yield chosen

    def _shapes(
        self, holding: PodDevices, candidate: ContainerCandidate | None, resource: str, size: int
    ) -> Iterator[Shape]:
        """Yield what is looked for: room for the whole pod, then for this container alone."""
        group, pod = holding.trust_group, candidate.pod if candidate else None
        cards = 1
        if pod and pod.request:
            yield pod.request.shape
            cards = pod.request.shape.cards
        mib = size * holding.unit_mib // cards if resource == GPU_MEMORY else 0
        percent = 0 if resource == GPU_MEMORY else size // cards
        part = candidate.part if candidate else None
        if part is not None:
            mib, percent = part.units * holding.unit_mib // cards, part.percent // cards
        # A core_mem node serves requests of both; where only one is known, as of a static pod, the least of the other.
        if self._setup.mode is Mode.CORE_MEM:
            percent = max(1, percent)
        yield Shape(RequestKind.SHARED, cards, mib, percent, group)

    def _room(self, without: str) -> FreeCapacity:
        node = node_info(self._setup.inventory, self._setup.mode, self._labels, self._configuration)
        return FreeCapacity(node, self._holdings, self._pods.values(), without)
