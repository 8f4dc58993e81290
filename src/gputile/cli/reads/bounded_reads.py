"""Reads an API server for somebody who waits: within a time limit, and not in silence."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gputile.api.conversion import has_more_items
from gputile.cli.options.common import FOR_EVER_S, Reach, duration_s
from gputile.cli.output.progress import SAY_AFTER_PIPED_S, Progress
from gputile.cli.output.streams import BAD_INPUT, ExitCode, fail
from gputile.kube.config import Access, load_access
from gputile.kube.errors import AnswerLost, BadAnswer, ConfigError, Forbidden, KubeError, NotFound, PluginTimeout
from gputile.kube.objects import NO_QUERY, Query, Reading, T, list_all

if TYPE_CHECKING:
    from gputile.kube.client import Connection
    from gputile.kube.credentials import Credentials

UNREACHABLE: Final = ExitCode.FAILED
Read = TypeVar("Read")
_SAY_AFTER_S: Final = 1.0
_MOST_BYTES: Final = 2 << 30  # of all answers together: 150,000 pods, as many as Kubernetes supports, have 1.5 GiB
_used: "Final[dict[Reach, Credentials]]" = {}  # by the last command that read a cluster so: a plugin is not asked twice
_looking_again: Final = ContextVar("looking_again", default=False)
_MOST_ITEMS: Final = 5_000_000  # of JSON, in one answer: a page of 500 pods has 250,000, and a node's images are 250


class Unreadable(Exception):
    """Why a cluster that could be read before cannot be read now."""


class BoundedReads:
    """GET requests of a connection, each bounded in seconds; the bound includes all attempts."""

    def __init__(self, connection: "Connection", server: str, seconds: float) -> None:
        self._connection = connection
        self._server = server
        self._seconds = seconds
        self._read_bytes = 0

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context."""
        return self._connection.namespace

    async def get(self, path: str, query: Query = NO_QUERY, *, within: float | None = None) -> bytes:
        """Return the object or list at ``path``; ``within`` counts where it is shorter.

        Raises:
            KubeError: it could not be read in that time.
        """
        seconds = min(self._seconds, within or self._seconds) if self._seconds < FOR_EVER_S else FOR_EVER_S
        try:
            async with asyncio.timeout(seconds):
                body = await self._connection.get(path, query, within=2 * seconds)  # the time-out above comes first
        except TimeoutError:
            raise AnswerLost(
                f"{self._server} did not answer GET {path} within {seconds:g} s; --request-timeout gives it more time"
            ) from None
        self._read_bytes += len(body)
        if self._read_bytes > _MOST_BYTES:
            raise BadAnswer(
                f"GET {path}: the answers are longer than {_MOST_BYTES >> 30} GiB together; no cluster's are"
            )
        if has_more_items(body, _MOST_ITEMS):
            raise BadAnswer(
                f"GET {path}: the answer has more than {_MOST_ITEMS:,} fields and entries; no page has so many"
            )
        return body


@asynccontextmanager
async def reads(reach: Reach) -> AsyncIterator[BoundedReads]:
    """Open a connection to the API server for reading; a terminal says after a second whom it waits for.

    Raises:
        KubeError: there is no usable kubeconfig, or no credential.
    """
    from gputile.kube.client import MOST_ANSWER_BYTES, Attempts, Connection

    access, seconds = await _usable_access(reach)
    attempts = Attempts(longest_wait_s=seconds)
    async with Connection(access, attempts=attempts, most_bytes=MOST_ANSWER_BYTES) as connection:
        with Progress(f"waiting for {access.server}", after=_SAY_AFTER_S, piped=SAY_AFTER_PIPED_S):
            yield BoundedReads(connection, access.server, seconds)


@asynccontextmanager
async def writes(reach: Reach) -> "AsyncIterator[tuple[Connection, float]]":
    """Open a connection to the API server that writes too, for requests of so many seconds.

    Raises:
        KubeError: there is no usable kubeconfig, or no credential.
    """
    from gputile.kube.client import MOST_ANSWER_BYTES, Connection

    access, seconds = await _usable_access(reach)
    async with Connection(access, within=seconds, most_bytes=MOST_ANSWER_BYTES) as connection:
        yield connection, seconds


async def _usable_access(reach: Reach) -> tuple[Access, float]:
    """Return how the API server is reached, with a credential, and how many seconds it has for an answer."""
    seconds = duration_s(reach.request_timeout)
    access = load_access(reach.kubeconfig, reach.context, plugin_s=seconds)
    if (before := _used.get(reach)) is not None:
        access.credentials.take_over(before)
    _used[reach] = access.credentials
    if access.credentials.waits_for:
        with Progress(f"waiting for {access.credentials.waits_for}", after=_SAY_AFTER_S, piped=_SAY_AFTER_S):
            await access.credentials.current()
    return access, seconds


async def listed(
    connection: Reading, path: str, kind: type[T], query: Query = NO_QUERY
) -> tuple[list[T] | None, str | None]:
    """Return the objects at ``path``; None, and why, where they may not be listed; None alone if none are served.

    Raises:
        KubeError: the API server fails.
    """
    try:
        return await list_all(connection, path, kind, query), None
    except NotFound:
        return None, None
    except Forbidden as error:
        return None, str(error)


def read_or_leave(reading: Coroutine[Any, Any, Read]) -> Read:
    """Return what was read of a cluster; leave the program, with what is wrong, where it cannot be read.

    Raises:
        Unreadable: instead, within ``looking_again``.
    """
    try:
        return asyncio.run(reading)
    except KubeError as error:
        why = f"cannot read the cluster: {error}"
        if isinstance(error, PluginTimeout):
            why += "; run it by itself to see what it waits for, or give it more time with --request-timeout"
        if _looking_again.get():
            raise Unreadable(why) from error
        # a bad answer is one as of a kubeconfig that names something else than an API server
        fail(why, BAD_INPUT if isinstance(error, ConfigError | BadAnswer) else UNREACHABLE)


@contextmanager
def looking_again() -> Iterator[None]:
    """Within it, what would leave the program raises ``Unreadable``: for who has read before, and looks again."""
    before = _looking_again.set(True)
    try:
        yield
    finally:
        _looking_again.reset(before)
