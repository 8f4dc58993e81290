"""Elects the leader among replicas.

A replica leads once it holds the Lease and its cache contains all writes that were made before it
took the Lease. So a replica that takes the Lease from another replica lists the cluster before it
acts. Each change of the holder begins a new term. A replica that resumes its own lapsed Lease does
not list again, because no other replica has acted.

The extender's Lease follows the requests (``LeaderGate``). Each kube-scheduler calls its own
extender, and only the leading kube-scheduler sends requests. The replica that gets requests takes
the Lease, and renews it while requests arrive. Without requests, the Lease lapses. A replica that
takes over first fences off the Bindings of its predecessor (``extender.fence``), unless the
predecessor has released the Lease. A replica releases the Lease only if none of its Bindings is
unconfirmed.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import NoReturn

from gputile.kube.errors import KubeError
from gputile.kube.lease import NOBODY_YET, LeaseHolder

log = logging.getLogger(__name__)

RENEW_EVERY_S = 2.0  # while the cluster is listed, which may take longer than the Lease is valid


def default_identity() -> str:
    """Return the host name. It is the pod's name, so a restarted container resumes its Lease."""
    return socket.gethostname()


class NotReady(Exception):
    """This replica may not act now. The message gives the reason. A retry may succeed."""


class NoLease:
    """A substitute for the Lease if there is only one replica.

    ``vacated`` would mean that no writes of the previous leader are in progress. It is always
    False, because an earlier process may still have writes in progress.
    """

    term, holder, vacated = ("", 0), "", False

    def __init__(self) -> None:
        self._is_given_up = False

    def valid(self) -> bool:
        return not self._is_given_up

    async def renew(self) -> bool:
        return self.valid()

    acquire = observe = renew

    def give_up(self) -> None:
        self._is_given_up = True

    async def release(self) -> None:
        self.give_up()


class LeaderElection:
    """Takes the Lease, renews it, and releases it.

    ``catch_up`` lists the cluster. Its argument is True if the predecessor has not released the
    Lease, because some of its writes may then be in progress. ``leading`` is called whenever this
    replica becomes the leader, also if it resumes its own lapsed Lease.
    """

    def __init__(
        self,
        lease: LeaseHolder | NoLease,
        catch_up: Callable[[bool], Awaitable[None]],
        leading: Callable[[], None] | None = None,
    ) -> None:
        self._lease = lease
        self._catch_up = catch_up
        self._leading = leading or (lambda: None)
        # the term in which this replica has caught up
        self._caught_up: tuple[str, int] | None = None

    def leads(self) -> bool:
        return self._lease.valid() and self._caught_up == self._lease.term

    async def lead(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Take or renew the Lease, then list the cluster if another replica may have led meanwhile.

        The Lease is taken first, so that the list contains every write of the predecessor. While
        listing, the Lease is renewed as long as ``wanted`` returns True.

        Raises:
            NotReady: another replica holds or has taken the Lease, or this replica has given it up.
            KubeError: the Lease cannot be read or written, or the cluster cannot be listed.
        """
        lapsed = not self._lease.valid()
        if not await (self._lease.acquire() if lapsed else self._lease.renew()):
            holder = self._lease.holder
            if holder == NOBODY_YET:
                raise NotReady("no replica leads yet: the Lease is new")
            raise NotReady(f"replica {holder} leads" if holder else "another replica leads")
        term = self._lease.term
        if term != self._caught_up:
            log.info(
                "taking over", extra={"lease_transitions": term[1], "released": self._lease.vacated}
            )
            renewing = asyncio.create_task(self.keep_renewing(RENEW_EVERY_S, wanted))
            try:
                await self._catch_up(not self._lease.vacated)
            finally:
                renewing.cancel()
            self._caught_up = term
            if not self._lease.valid() and not await self._lease.renew():
                raise NotReady("the Lease was lost while the cluster was listed")
        elif not lapsed:
            return
        if not self.leads():
            raise NotReady("the Lease changed hands while the cluster was listed")
        self._leading()

    async def renew(self, *, wanted: bool) -> None:
        """Renew the Lease if it is valid and ``wanted``. Otherwise, read it without renewing it."""
        try:
            if not (wanted and self._lease.valid()):
                await self._lease.observe()
            elif not await self._lease.renew():
                log.warning("the Lease is lost", extra={"holder": self._lease.holder})
        except KubeError as error:
            log.warning("the Lease cannot be read or written: %s", error)

    async def run(self, seconds: float) -> NoReturn:
        """Try to take the Lease, or renew it, every ``seconds``."""
        led = False
        while True:
            try:
                await self.lead()
                led = True
            except NotReady as error:
                if led:
                    log.warning("this replica no longer leads: %s", error)
                led = False
            except KubeError as error:
                log.warning("the Lease cannot be read or written: %s", error)
            await asyncio.sleep(seconds)

    async def keep_renewing(self, seconds: float, wanted: Callable[[], bool]) -> NoReturn:
        """Call ``renew`` every ``seconds``, with the result of ``wanted``."""
        while True:
            await asyncio.sleep(seconds)
            await self.renew(wanted=wanted())

    async def resign(self, *, release: bool) -> None:
        """Stop leading for good. With ``release``, release the Lease. Otherwise let it expire.

        A released Lease means that no writes are in progress. So a replica that has not caught up
        does not release the Lease, because writes of its predecessor may be in progress.
        """
        caught_up, self._caught_up = self._caught_up == self._lease.term, None
        if not (release and caught_up):
            self._lease.give_up()
            return
        try:
            await self._lease.release()
        except KubeError as error:
            log.warning("the Lease cannot be released: %s", error)


class LeaderGate:
    """Admits calls while this replica leads.

    After each call, the Lease is renewed for ``idle_seconds``. If no other call follows in this
    time, the Lease lapses.
    """

    def __init__(
        self,
        election: LeaderElection,
        monotonic: Callable[[], float],
        *,
        idle_seconds: float = 60.0,
    ) -> None:
        self._election = election
        self._monotonic = monotonic
        self._idle_seconds = idle_seconds
        self._last_call = float("-inf")
        self._leading: asyncio.Task[None] | None = None

    async def admit(self) -> None:
        """Wait until this replica leads.

        Raises:
            NotReady: another replica leads, or a request to the API server failed.
        """
        self._last_call = self._monotonic()
        if self._election.leads():
            return
        if self._leading is None:
            self._leading = asyncio.create_task(self._election.lead(self.wants_lease))
            self._leading.add_done_callback(lambda _: setattr(self, "_leading", None))
        try:
            await asyncio.shield(self._leading)
        except KubeError as error:
            raise NotReady(f"this replica cannot take over: {error}") from error

    def wants_lease(self) -> bool:
        return self._monotonic() - self._last_call < self._idle_seconds
