"""Reading an API server for somebody who waits: bounded, and not in silence."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gputile.api.json_size import has_more_items
from gputile.cli.options import Reach
from gputile.cli.output import fail
from gputile.cli.progress import SAY_AFTER_PIPED_S, Progress
from gputile.kube.answer_bounds import MOST_ANSWER_BYTES
from gputile.kube.attempts import Attempts
from gputile.kube.errors import AnswerLost, BadAnswer, ConfigError, KubeError, PluginTimeout
from gputile.kube.kubeconfig import Access, load_access
from gputile.kube.light_connection import LightConnection
from gputile.kube.request import NO_QUERY, Query

if TYPE_CHECKING:
    from gputile.kube.connection import Connection

UNREACHABLE: Final = 1
Read = TypeVar("Read")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_FOR_EVER_S: Final = 1e9
_SAY_AFTER_S: Final = 1.0
_MOST_BYTES: Final = 2 << 30  # of all answers together: 150,000 pods, as many as Kubernetes supports, have 1.5 GiB
_MOST_ITEMS: Final = 5_000_000  # of JSON, in one answer: a page of 500 pods has 250,000, and a node's images are 250


class BoundedReads:
    """GET requests of a connection, each bounded in seconds; the bound includes all attempts."""

    def __init__(self, connection: "LightConnection | Connection", server: str, seconds: float) -> None:
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
        seconds = min(self._seconds, within or self._seconds) if self._seconds < _FOR_EVER_S else _FOR_EVER_S
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
    seconds = duration_s(reach.request_timeout)
    access = load_access(reach.kubeconfig, reach.context, plugin_s=seconds)
    if access.credentials.waits_for:
        with Progress(f"waiting for {access.credentials.waits_for}", after=_SAY_AFTER_S, piped=_SAY_AFTER_S):
            await access.credentials.current()
    async with connection_to(access, longest_wait_s=seconds) as connection:
        with Progress(f"waiting for {access.server}", after=_SAY_AFTER_S, piped=SAY_AFTER_PIPED_S):
            yield BoundedReads(connection, access.server, seconds)


def read_or_leave(reading: Coroutine[Any, Any, Read]) -> Read:
    """Return what was read of a cluster; leave the program, with what is wrong, where it cannot be read."""
    try:
        return asyncio.run(reading)
    except PluginTimeout as error:
        remedy = "run it by itself to see what it waits for, or give it more time with --request-timeout"
        fail(f"cannot read the cluster: {error}; {remedy}")
    except ConfigError as error:
        fail(f"cannot read the cluster: {error}")
    except BadAnswer as error:
        fail(f"cannot read the cluster: {error}")  # as of a kubeconfig that names something else than an API server
    except KubeError as error:
        fail(f"cannot read the cluster: {error}", UNREACHABLE)


def connection_to(access: Access, longest_wait_s: float = math.inf) -> "LightConnection | Connection":
    """Return the connection that costs least: what speaks with proxies takes long to load.

    A server that asks for a pause of ``longest_wait_s`` seconds or more before the next attempt is asked no more.
    """
    attempts = Attempts(longest_wait_s=longest_wait_s)
    if access.proxy is None:
        return LightConnection(access, attempts=attempts)
    from gputile.kube.connection import Connection

    return Connection(access, attempts=attempts, most_bytes=MOST_ANSWER_BYTES)


def duration_s(text: str) -> float:
    """Return the seconds of a time as kubectl takes it: 10s, 1m30s, 500ms, or seconds; 0 is without a limit.

    Leaves the program where it is none.
    """
    if text.isascii() and text.isdigit():
        seconds = float(text)
    elif text and not _PART.sub("", text):
        seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(text))
    else:
        fail(f"--request-timeout {text}: say a time as 10s, 1m30s or 500ms; 0 waits for ever")
    return min(seconds or _FOR_EVER_S, _FOR_EVER_S)
