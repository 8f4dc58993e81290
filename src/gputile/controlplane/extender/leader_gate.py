"""Admits calls to the extender while this replica is the leader; the Lease follows the traffic.

kube-scheduler talks to the extender beside it, and only the scheduler that is the leader talks at all. So the replica
that is asked takes the Lease, keeps it while it is asked, and lets it lapse when nobody asks any more. Before a replica
takes over, it fences off the Bindings of the one before (``fence``), unless that one had released the Lease: it does so
only when no Binding of its own is unconfirmed.
"""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from gputile.controlplane.leader_election import Election, NotReady
from gputile.kube.errors import KubeError


class LeaderGate:
    """Admits calls while this replica leads; ``idle_seconds`` is how long it keeps the Lease after the last call."""

    def __init__(self, election: Election, monotonic: Callable[[], float], *, idle_seconds: float = 60.0) -> None:
        self._election = election
        self._monotonic = monotonic
        self._idle_seconds = idle_seconds
        self._last_call = float("-inf")
        self._leading: asyncio.Task[None] | None = None

    async def admit(self) -> None:
        """Return when this replica may act.

        Raises:
            NotReady: another replica leads, or the API server does not answer.
        """
        self._last_call = self._monotonic()
        if self._election.leads():
            return
        if self._leading is None:
            self._leading = asyncio.create_task(self._lead())
            self._leading.add_done_callback(lambda _: setattr(self, "_leading", None))
        await asyncio.shield(self._leading)

    async def _lead(self) -> None:
        try:
            await self._election.lead(self._is_asked)
        except KubeError as error:
            raise NotReady(f"this replica cannot take over: {error}") from error

    async def keep(self, seconds: float) -> NoReturn:
        """Renew the Lease every ``seconds`` while this replica is asked; read it while it is not. Runs for ever."""
        while True:
            await asyncio.sleep(seconds)
            await self._election.renew(wanted=self._is_asked())

    def _is_asked(self) -> bool:
        return self._monotonic() - self._last_call < self._idle_seconds
