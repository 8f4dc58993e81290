"""Sends a request again: a GET that failed for now, and any request whose credential was refused."""

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gputile.kube.access.credentials import Credential, Credentials
from gputile.kube.backoff import Backoff
from gputile.kube.clock import SYSTEM_CLOCK, Clock
from gputile.kube.errors import AnswerLost, ConnectionFailed, ServerError, TooManyRequests, Unauthorized

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Attempts:
    """A GET is sent at most ``number`` times, with ``backoff`` between, or as long as the API server asks for.

    Where it asks for more than ``longest_wait_s``, that is the end.
    """

    number: int = 4
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.1, longest=2.0))
    clock: Clock = SYSTEM_CLOCK
    longest_wait_s: float = math.inf

    async def of(self, send: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return what ``send`` returns, called again while the API server is unreachable, overloaded or failing.

        Raises:
            KubeError: the failure of the last attempt.
        """
        for attempt in range(self.number - 1):
            try:
                return await send()
            except (ConnectionFailed, AnswerLost, ServerError, TooManyRequests) as error:
                log.info("trying again: %s", error)
                seconds = max(self.backoff.delay(attempt), error.retry_after)
                if seconds >= self.longest_wait_s:
                    raise
            await self.clock.sleep(seconds)
        return await send()


async def with_credential(credentials: Credentials, send: Callable[[Credential], Awaitable[Answer]]) -> Answer:
    """Return what ``send`` returns for the credential of now; after a 401 for the one that comes after it.

    Raises:
        KubeError: ``send`` raised it, or there is no credential.
    """
    credential = await credentials.current()
    try:
        return await send(credential)
    except Unauthorized:
        if not credentials.refused(credential):
            raise
    return await send(await credentials.current())
