"""The right-card protocol: steer the kubelet to the booked card, check what it chose, remember who got what.

Everything here is decided from what it is given; nothing waits and nothing is read. The order of the kubelet's calls
for one container of one resource is ``preferred`` (not always asked), ``allocate``, and before each start
``prestart``.

An error from ``allocate`` kills the pod for good, and whoever controls it makes the next one at once. So it is given
only where a container would otherwise start with a card or an amount that is not its own: IDs of cards that are not
there, or of too many cards. Cards without room, or with pods that it must not share them with, are a matter of time:
the pod keeps its IDs, and ``prestart``, which the kubelet tries again and again, waits until they have gone.
Everything else is served as the kubelet chose, and the ledger corrected.
"""

import contextlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial

import msgspec

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import ObjectMeta, Pod
from gputile.core.devices.request import Phase
from gputile.node.agent.advertise.node_config import NodeConfig
from gputile.node.agent.allocate.answer import Grant, Limits, environment, pod_mib, shares_of
from gputile.node.agent.allocate.container_matcher import (
    ContainerCandidate,
    candidates,
    unlisted_candidates,
    worth_asking,
)
from gputile.node.agent.allocate.device_ids import DeviceIdError
from gputile.node.agent.allocate.device_stage import DeviceEvent
from gputile.node.agent.allocate.device_table import DeviceTable
from gputile.node.agent.allocate.known_pods import KnownPod
from gputile.node.agent.allocate.placement_targets import PlacementTargets
from gputile.node.agent.allocate.pod_cache import PodCache
from gputile.node.agent.allocate.pod_devices import (
    ContainerDevices,
    PodDevices,
    cards_of,
    directory_name,
    stand_in,
    static_uid,
    unknown_uid,
)
from gputile.node.agent.allocate.preferred_allocation import readable
from gputile.node.agent.allocate.validation import (
    AllocationConflict,
    Occupied,
    check_others,
    given_twice,
    stranger_on,
    validate,
)
from gputile.node.agent.reconcile.listing import ListedPod, Listing
from gputile.node.agent.reconcile.listing_sync import holding_for, sync_with_listing, with_part

EXPECTED_FOR_S = 10.0  # between a preference and its Allocate the kubelet does nothing that takes time


class NotYet(Exception):
    """A container must not start before this is settled; the kubelet tries again."""


@dataclass(frozen=True, slots=True)
class _Expected:
    resource: str
    ids: frozenset[str]
    candidate: ContainerCandidate | None
    at: float


@dataclass(frozen=True, slots=True)
class Start:
    """A container that may be about to start: its limits, and what it was told to mount, None where nobody knows."""

    directory: str
    limits: Limits
    mounts: Mapping[str, str] | None


class AllocationState:
    """The state of the node's admissions. ``pods`` are the pods bound to this node, by key.

    ``settled`` is unset while the kubelet has just started and lists its pods one after the other.
    """

    def __init__(self, configuration: Configuration, setup: NodeConfig, holdings: DeviceTable) -> None:
        self.configuration = configuration
        self.setup = setup
        self.holdings = holdings
        self.pods = PodCache()
        self.labels: Mapping[str, str] = {}
        self.settled = True
        self._expected: _Expected | None = None
        self._last_uid = ""

    # -- what the shell asks before it calls

    def unclear(self, listing: Listing | None, resource: str, size: int) -> list[str]:
        """Return the keys of pods to read from the API server before relying on what is known of them."""
        return worth_asking(self._candidates(listing, resource, size))

    def settle(self, listing: Listing, now_ns: int) -> None:
        """Correct what is remembered by what the kubelet lists while it waits for an answer.

        It admits nothing meanwhile, so a listed container that has no devices got none, whatever was answered before:
        the kubelet died before it wrote the answer down, or it was for another pod. One that was let start is another
        matter: that the kubelet had written down, and has forgotten.
        """
        sync_with_listing(listing, self.pods, self.holdings, self.setup, now_ns)
        for holding in self.holdings:
            listed = listing.get(holding.key)
            if listed is None or not holding.identified:
                continue
            event = self._loss(holding)
            if event is not None:
                self.holdings.apply(holding, event, partial(_bare, listed))

    def expects(self, resource: str, ids: Iterable[str], now: float) -> bool:
        """Return whether an ``allocate`` of ``ids`` follows the last preference, so that its pod is known already."""
        expected = self._expected
        return (
            expected is not None
            and expected.resource == resource
            and expected.ids == frozenset(ids)
            and now - expected.at < EXPECTED_FOR_S
        )

    def directories(self) -> set[str]:
        """Return the names of the allocation directories that containers may have, whatever the kubelet still knows."""
        own = {
            directory_name(pod.uid, part.name)
            for pod in self.pods.values()
            if pod.alive and pod.request is not None
            for part in pod.request.containers
        }
        return own | self.holdings.directories()

    # -- the protocol

    def preferred(
        self,
        resource: str,
        available: Iterable[str],
        must: Iterable[str],
        size: int,
        listing: Listing | None,
        now: float,
    ) -> tuple[str, ...]:
        """Return the IDs that the kubelet should take."""
        kept = frozenset(must)
        free = tuple(device_id for device_id in available if device_id not in kept)
        candidate = next((c for c in self._candidates(listing, resource, size) if c.known), None)
        blank = self._holding(candidate, "", 0)
        self._release(free, resource, listing, blank.uid)
        in_use = self._in_use(free, resource, blank.uid, candidate)
        offered = (*kept, *(device_id for device_id in free if device_id not in in_use))

        def servable(ids: tuple[str, ...]) -> bool:
            try:
                self._verified(candidate, blank, resource, ids, reused=False)
            except AllocationConflict:
                return False
            return True

        targets = PlacementTargets(self.setup, self.holdings, self.pods, self.labels, self.configuration)
        ids = targets.choose(blank, candidate, resource, readable(offered), readable(kept), size, servable)
        self._expected = _Expected(resource, frozenset(ids), candidate, now)
        self._last_uid = blank.uid
        return ids

    def allocate(
        self,
        resource: str,
        ids: tuple[str, ...],
        listing: Listing | None,
        now: float,
        now_ns: int,
        *,
        may_wait: bool = False,
    ) -> tuple[Grant, PodDevices]:
        """Take ``ids`` as given to the container that is being admitted; return what it gets, and what its pod holds.

        What others on the cards forbid is no reason to fail the pod if it ``may_wait``: ``prestart`` keeps it from
        starting until they are gone.

        Raises:
            Contradiction: they cannot be served.
        """
        if self._expected is not None and self.expects(resource, ids, now):
            candidate = self._expected.candidate
        else:
            candidate = self._asking(resource, ids, listing)
        self._expected = None
        holding = self._holding(candidate, min(ids, default=""), now_ns)
        self._release(ids, resource, listing, holding.uid)
        before = {i for p in holding.parts if p.resource == resource and p.phase is Phase.INIT for i in p.ids}
        if not _is_init(candidate):
            holding = self._without_moved(holding, resource, ids)
        reused = before.issuperset(ids)
        holding, part = self._verified(candidate, holding, resource, ids, reused=reused, may_wait=may_wait)
        self.holdings.put(holding)
        self._last_uid = holding.uid
        pod, asked = (candidate.pod, candidate.part) if candidate else (None, None)
        indices = self._cards(pod, holding, part)
        shares = shares_of(self.setup, holding, part.container, asked, indices)
        uuids = self.setup.uuids(resource, ids, indices)
        mib = pod_mib(holding, pod, indices[0]) if indices else 0
        threads = pod.mps_threads if pod else 0
        granted = environment(self.setup, uuids, shares, holding.unit_mib, mib, threads)
        return Grant(granted, part.directory, uuids), holding

    def answered(self, uid: str, resource: str, directory: str, mounts: tuple[tuple[str, str], ...]) -> None:
        """Remember what the container with this allocation directory was told to mount, for ``resource``."""
        holding = self.holdings.get(uid)
        for part in holding.parts if holding is not None else ():
            if holding is not None and (part.resource, part.directory) == (resource, directory):
                holding = holding.replaced(msgspec.structs.replace(part, mounts=mounts))
                self.holdings.put(holding)

    def prestart(self, resource: str, ids: tuple[str, ...], listing: Listing | None, now_ns: int) -> list[Start]:
        """Return the container with ``ids``.

        An init container and the container that takes over its IDs are two, each with its own limits.

        Raises:
            NotYet: it is not certain whose the IDs are, or what is known of it forbids the start.
        """
        if listing is not None:
            sync_with_listing(listing, self.pods, self.holdings, self.setup, now_ns)
        wanted = frozenset(ids)
        found = [
            (holding, part)
            for holding in self.holdings.holders(resource, ids)
            for part in holding.parts
            if part.resource == resource and frozenset(part.ids) == wanted
        ]
        if not found:
            raise NotYet(f"no container is known yet that has these IDs of {resource}")
        for holding, part in found:
            if problem := given_twice(self.setup, self.holdings, holding, part):
                raise NotYet(problem)
        if len({holding.uid for holding, _ in found}) > 1:  # one that was let start before has all it needs
            found = [pair for pair in found if not self.holdings.stage(pair[1]).may_run] or found
        return [self._start(holding, part) for holding, part in found]

    def let_start(self) -> list[Start]:
        """Return the containers that were let start and whose pods are known, with the limits that are right for them.

        An agent of an earlier release let containers start before it knew their pods, with limits to be corrected.
        """
        found = []
        for holding in self.holdings:
            pod = self.pods.get(holding.key)
            if pod is None or pod.uid != holding.uid or not pod.alive:
                continue
            for part in holding.parts:
                if self.holdings.stage(part).may_run:
                    with contextlib.suppress(NotYet):
                        found.append(self._start(holding, part))
        return found

    def _start(self, holding: PodDevices, part: ContainerDevices) -> Start:
        self._wait_for_others(holding, part)
        mounts = dict(part.mounts) if part.mounts is not None else None
        return Start(part.directory, self._limits(holding, part), mounts)

    # -- who, and what they hold

    def _candidates(self, listing: Listing | None, resource: str, size: int) -> list[ContainerCandidate]:
        if listing is None:
            return unlisted_candidates(self.pods, self.holdings, resource, size)
        return candidates(listing, self.pods, self.holdings, resource, size, self._last_uid)

    def _asking(self, resource: str, ids: tuple[str, ...], listing: Listing | None) -> ContainerCandidate | None:
        """Return who asks for just these IDs; those of an init container can only be for its own pod."""
        found = [c for c in self._candidates(listing, resource, len(ids)) if c.known]
        owners = {
            holding.uid
            for holding in self.holdings.holders(resource, ids)
            if any(
                p.phase is Phase.INIT and p.resource == resource and not set(ids).isdisjoint(p.ids)
                for p in holding.parts
            )
        }
        own = (c for c in found if c.pod is not None and c.pod.uid in owners and not self._runs_on(c))
        return next(own, found[0] if found else None)

    def _runs_on(self, candidate: ContainerCandidate) -> bool:
        """Return whether it is a container that was let start and is left alone, as no init container is."""
        uid = candidate.pod.uid if candidate.pod is not None else ""
        return not _is_init(candidate) and self.holdings.stage_of(uid, candidate.container).may_run

    def _holding(self, candidate: ContainerCandidate | None, mark: str, now_ns: int) -> PodDevices:
        """Return what the candidate's pod holds so far; under a stand-in where the pod is not known."""
        if candidate is None:
            return holding_for(unknown_uid(mark), None, "", self.setup, "", now_ns)
        pod, key = candidate.pod, candidate.key
        uid = pod.uid if pod else static_uid(key)
        namespace, _, name = key.partition("/")
        meta = ObjectMeta(namespace=namespace, name=name)
        group = pod.trust_group if pod else self.configuration.trust_group(Pod(metadata=meta))
        return self.holdings.get(uid) or holding_for(uid, pod, key, self.setup, group, now_ns)

    def _verified(
        self,
        candidate: ContainerCandidate | None,
        holding: PodDevices,
        resource: str,
        ids: tuple[str, ...],
        *,
        reused: bool,
        may_wait: bool = False,
    ) -> tuple[PodDevices, ContainerDevices]:
        container, pod, asked = (candidate.container, candidate.pod, candidate.part) if candidate else ("", None, None)
        phase = asked.phase if asked else Phase.APP
        try:
            directory = self.holdings.directory_for(holding.uid, container)
            part = ContainerDevices(container, phase, resource, ids, directory)
            holding = with_part(holding, part, self.setup)
        except DeviceIdError as error:
            raise AllocationConflict(str(error)) from error
        cards, most = pod.request.shape.cards if pod and pod.request else 1, self.configuration.max_pods_per_gpu
        try:
            validate(self.setup, self.holdings, holding, container, resource, cards, most, reused=reused)
        except Occupied:
            if not may_wait:
                raise
        return holding, part

    def _release(self, ids: Iterable[str], resource: str, listing: Listing | None, uid: str) -> None:
        """Forget what the kubelet has let go of: it would not offer, or give away, what it still sees as taken.

        But it does, too: while it waits for an answer, a ``List`` that finds a pod gone makes it count anew what is
        taken, without what it is about to give (``UpdateAllocatedDevices`` in pkg/kubelet/cm/devicemanager). So what it
        lists, or cannot be asked about, is not forgotten.

        Containers that were let start keep theirs even if the kubelet has forgotten them: it does after the loss of its
        checkpoint, and where it refuses a pod that another one had started and dies before it has told the API server.
        """
        free = set(ids)
        for holding in self.holdings.holders(resource, free):
            if holding.uid == uid:
                continue
            pod = self.pods.get(holding.key)
            alive = pod is not None and pod.alive and pod.uid == holding.uid
            shown = listing.get(holding.key) if listing is not None else None
            if not alive or (listing is not None and shown is None and self.settled):
                self.holdings.apply(holding, DeviceEvent.POD_GONE)
            elif listing is not None and (event := self._loss(holding)) is not None:
                nothing = ListedPod(holding.namespace, holding.name)
                self.holdings.apply(holding, event, partial(_offered, shown or nothing, resource, free))

    def _loss(self, holding: PodDevices) -> DeviceEvent | None:
        """Return what it means that the kubelet does not count devices as the pod's; None if that is no news.

        A pod that runs has been admitted with all of its devices: those were given for good.
        """
        pod = self.pods.get(holding.key)
        if pod is None or pod.uid != holding.uid:
            return DeviceEvent.POD_GONE
        return DeviceEvent.UNLISTED if pod.pod.status.phase != "Running" else None

    def _without_moved(self, holding: PodDevices, resource: str, ids: tuple[str, ...]) -> PodDevices:
        """Take away what containers of the pod had of ``ids``: the kubelet has forgotten that they run with them.

        Their allocation directories stay as long as the pod. Init containers hand theirs on.
        """

        def moved(part: ContainerDevices) -> bool:
            return part.phase is not Phase.INIT and part.resource == resource and not set(ids).isdisjoint(part.ids)

        return self.holdings.kept_after(holding, DeviceEvent.MOVED, moved)

    def _in_use(self, ids: Iterable[str], resource: str, uid: str, candidate: ContainerCandidate | None) -> set[str]:
        """Return IDs that this container may not use, even if the kubelet calls them free; others may be among them.

        An init container may use IDs of its pod's other containers: they take them over, or it does not run again.
        """
        own = candidate.container if candidate else ""
        apart = not _is_init(candidate)
        return {
            device_id
            for holding in self.holdings.holders(resource, ids)
            for part in holding.parts
            if part.resource == resource
            and (holding.uid != uid or (apart and part.container != own and self.holdings.is_fixed(part)))
            for device_id in part.ids
        }

    def _cards(self, pod: KnownPod | None, holding: PodDevices, part: ContainerDevices) -> tuple[int, ...]:
        return cards_of(holding, part.container, pod.shared_cards if pod is not None and self.setup.mode.shared else 0)

    def _before(self, holding: PodDevices) -> DeviceTable:
        """Return the holdings of those who have cards rather than the pod of ``holding``; others wait for it."""
        return DeviceTable(o for o in self.holdings if o.uid != holding.uid and self._precedes(o, holding))

    def _wait_for_others(self, holding: PodDevices, part: ContainerDevices) -> None:
        """Keep a container from its first start while those forbid it who were on its cards before.

        Raises:
            NotYet: says who or what is in the way.
        """
        if self.holdings.stage(part).may_run:
            return
        most = self.configuration.max_pods_per_gpu
        try:
            check_others(self.setup, self.holdings, holding, part.resource, most)
        except Occupied:  # who has precedence takes reading of files, so it is asked where it counts alone
            try:
                check_others(self.setup, self._before(holding), holding, part.resource, most)
            except Occupied as error:
                raise NotYet(str(error)) from error

    def _precedes(self, one: PodDevices, other: PodDevices) -> bool:
        """Return whether ``one`` has the cards rather than ``other``: it has been started, or came first."""
        ran, mine = (any(self.holdings.stage(part).may_run for part in holding.parts) for holding in (one, other))
        return ran if ran != mine else (one.since_ns, one.uid) < (other.since_ns, other.uid)

    def _limits(self, holding: PodDevices, part: ContainerDevices) -> Limits:
        pod = self.pods.get(holding.key)
        if not holding.identified:
            raise NotYet("the kubelet does not say yet whose these device IDs are")
        if stand_in(holding.uid) and self.setup.mode.shared:
            # Its IDs may count in another unit than the one in force, and its annotation may say other cards.
            raise NotYet(f"the API server has not said yet what pod {holding.key} asks for")
        own = pod if pod is not None and pod.uid == holding.uid else None
        indices = self._cards(own, holding, part)
        for index in indices:
            stranger = stranger_on(self.setup, self.holdings, holding, index)
            stranger = stranger and stranger_on(self.setup, self._before(holding), holding, index)
            if stranger is not None:
                raise NotYet(f"GPU {index} is used by pod {stranger.key} of another trust group, without isolation")
        shares = shares_of(self.setup, holding, part.container, own.part(part.container) if own else None, indices)
        return Limits(
            namespace=holding.namespace,
            pod=holding.name,
            uid=holding.uid,
            container=part.container,
            mode=self.setup.mode.value,
            unit_mib=holding.unit_mib,
            cards=shares,
        )


def _bare(listed: ListedPod, part: ContainerDevices) -> bool:
    """Return whether the kubelet lists the container, and lists none of these devices, its own or another's."""
    return (
        part.container in listed.containers
        and not listed.ids(part.container, part.resource)
        and not listed.has(part.resource, part.ids)
    )


def _offered(listed: ListedPod, resource: str, free: Set[str], part: ContainerDevices) -> bool:
    """Return whether one of the devices is among the ``free`` ones, and the kubelet does not list them."""
    return part.resource == resource and not free.isdisjoint(part.ids) and not listed.has(resource, part.ids)


def _is_init(candidate: ContainerCandidate | None) -> bool:
    return candidate is not None and candidate.part is not None and candidate.part.phase is Phase.INIT
