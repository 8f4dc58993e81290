"""Which replica acts: the one that holds the Lease, once it has seen all that was written before it did."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from gputile.kube.errors import KubeError
from gputile.kube.lease import LeaseHolder

log = logging.getLogger(__name__)


class Leadership:
    """Takes the Lease when it can be had, and keeps it: ``refresh`` lists the cluster anew, ``begun`` follows."""

    def __init__(self, lease: LeaseHolder, refresh: Callable[[], Awaitable[None]], begun: Callable[[], None]) -> None:
        self._lease = lease
        self._refresh = refresh
        self._begun = begun
        self._seen_as_of: tuple[str, int] | None = None  # the Lease's term that all before it has been seen in

    def active(self) -> bool:
        """Return whether this replica may act now."""
        return self._lease.valid() and self._seen_as_of == self._lease.term

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last read, or ""."""
        return self._lease.holder

    async def keep(self, seconds: float) -> NoReturn:
        """Take or renew the Lease every ``seconds``, for ever."""
        while True:
            try:
                await self._once()
            except KubeError as error:
                log.warning("the Lease cannot be read or written: %s", error)
            await asyncio.sleep(seconds)

    async def _once(self) -> None:
        lapsed = not self._lease.valid()
        held = await (self._lease.acquire() if lapsed else self._lease.renew())
        if not held:
            if self._seen_as_of is not None:
                log.warning("the Lease is lost", extra={"holder": self._lease.holder})
            self._seen_as_of = None
            return
        if self._seen_as_of != self._lease.term:
            term = self._lease.term
            log.info("taking over", extra={"lease_transitions": term[1]})
            renewing = asyncio.create_task(self._renew_until_done())
            try:
                await self._refresh()
            finally:
                renewing.cancel()
            self._seen_as_of = term
            self._begun()
        elif lapsed:
            self._begun()  # what came while nobody might act was passed over

    async def _renew_until_done(self) -> NoReturn:
        """A list of a large cluster may take longer than the Lease lasts."""
        while True:
            await asyncio.sleep(2.0)
            try:
                await self._lease.renew()
            except KubeError as error:
                log.warning("the Lease cannot be renewed: %s", error)

    async def release(self) -> None:
        """Give the Lease up, for the next replica to take at once."""
        self._seen_as_of = None
        try:
            await self._lease.release()
        except KubeError as error:
            log.warning("the Lease cannot be released: %s", error)
