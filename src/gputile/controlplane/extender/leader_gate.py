"""Which replica may decide: the one that holds the Lease and has seen everything that was written before it did.

The Lease follows the traffic. kube-scheduler talks to the extender beside it, and only the scheduler that is the
leader talks at all; so the replica that is asked takes the Lease, keeps it while it is asked, and lets it lapse when
nobody asks any more. Who takes it over from another lists the cluster anew first. Unless that one had released it,
which it does when all its Bindings are settled, they are fenced off before (``fence``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gputile.controlplane.extender.readiness import NotReady
from gputile.kube.errors import KubeError
from gputile.kube.lease import LeaseHolder

log = logging.getLogger(__name__)


class AlwaysActive:
    """Admits calls to the only extender of a cluster, which has no Lease; the one before may have left Bindings."""

    def __init__(self, refresh: Callable[[bool], Awaitable[None]]) -> None:
        self._refresh = refresh
        self._begun = False
        self._beginning: asyncio.Task[None] | None = None

    def active(self) -> bool:
        """Return whether this extender may act now."""
        return self._begun

    async def admit(self) -> None:
        """Return when this extender may act.

        Raises:
            NotReady: the API server does not answer.
        """
        if self._begun:
            return
        if self._beginning is None:
            self._beginning = asyncio.create_task(self._begin())
            self._beginning.add_done_callback(lambda _: setattr(self, "_beginning", None))
        await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        try:
            await self._refresh(True)
        except KubeError as error:
            raise NotReady(f"pods cannot be listed: {error}") from error
        self._begun = True

    async def keep(self, _: float) -> None:
        """Return at once: there is nothing to be renewed."""

    async def end(self, *, settled: bool) -> None:  # noqa: ARG002 - the next one fences in any case
        """Act no more."""
        self._begun = False


class LeaderGate:
    """Admits calls while this replica is the active one.

    ``refresh`` lists the cluster anew; before that it fences Bindings of others off if it is told to.
    ``idle_seconds`` is how long the Lease is kept after the last call.
    """

    def __init__(
        self,
        lease: LeaseHolder,
        refresh: Callable[[bool], Awaitable[None]],
        monotonic: Callable[[], float],
        *,
        idle_seconds: float = 60.0,
    ) -> None:
        self._lease = lease
        self._refresh = refresh
        self._monotonic = monotonic
        self._idle_seconds = idle_seconds
        self._last_call = float("-inf")
        self._seen_as_of: tuple[str, int] | None = None  # the Lease's term that all before it has been seen in
        self._taking: asyncio.Task[None] | None = None

    def active(self) -> bool:
        """Return whether this replica may act now."""
        return self._lease.valid() and self._seen_as_of == self._lease.term

    async def admit(self) -> None:
        """Return when this replica may act.

        Raises:
            NotReady: another one holds the Lease, or it cannot be had now.
        """
        self._last_call = self._monotonic()
        if self.active():
            return
        if self._taking is None:
            self._taking = asyncio.create_task(self._take())
            self._taking.add_done_callback(lambda _: setattr(self, "_taking", None))
        await asyncio.shield(self._taking)

    async def _take(self) -> None:
        try:
            held = await self._lease.acquire()
        except KubeError as error:
            raise NotReady(f"the Lease cannot be had: {error}") from error
        if not held:
            raise NotReady(f"replica {self._lease.holder or 'of another name'} is the active one")
        term = self._lease.term
        if term == self._seen_as_of:
            return  # the Lease had only lapsed: nobody else has acted meanwhile
        log.info("taking over", extra={"lease_transitions": term[1], "released": self._lease.vacated})
        try:
            await self._refresh(not self._lease.vacated)
        except KubeError as error:
            raise NotReady(f"pods cannot be listed: {error}") from error
        if not self._lease.valid() and not await self._lease.renew():
            raise NotReady("the Lease was lost while the cluster was listed")
        self._seen_as_of = term
        if not self.active():
            raise NotReady("the Lease changed hands while the cluster was listed")

    async def keep(self, seconds: float) -> None:
        """Renew the Lease every ``seconds`` while this replica is asked; watch it while it is not. Runs for ever."""
        while True:
            await asyncio.sleep(seconds)
            try:
                if self._lease.valid() and self._monotonic() - self._last_call < self._idle_seconds:
                    if not await self._lease.renew():
                        log.warning("the Lease is lost", extra={"holder": self._lease.holder})
                else:
                    await self._lease.observe()
            except KubeError as error:
                log.warning("the Lease cannot be renewed or read: %s", error)

    async def end(self, *, settled: bool) -> None:
        """Act no more. If all Bindings are ``settled`` the Lease is released, for the next replica to take at once.

        If they are not it ends by itself, and who takes it fences them off.
        """
        self._seen_as_of = None
        if not settled:
            return
        try:
            await self._lease.release()
        except KubeError as error:
            log.warning("the Lease cannot be released: %s", error)
