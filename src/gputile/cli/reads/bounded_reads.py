"""Reads an API server for somebody who waits: within a time limit, and not in silence."""

import asyncio
import functools
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

from gputile.cli.options.common import Reach, duration_s
from gputile.cli.output.progress import SAY_AFTER_PIPED_S, Progress
from gputile.cli.output.streams import BAD_INPUT, ExitCode, fail
from gputile.kube.client import Attempts, Connection, list_pages
from gputile.kube.config import Access, load_access
from gputile.kube.errors import AnswerLost, BadAnswer, ConfigError, Forbidden, KubeError, NotFound, PluginTimeout
from gputile.kube.objects import NO_QUERY, ObjectDecoder, Query, Replaced, T

UNREACHABLE: Final = ExitCode.FAILED
Read = TypeVar("Read")
_SAY_AFTER_S: Final = 1.0
_looking_again: Final = ContextVar("looking_again", default=False)


class Unreadable(Exception):
    """Why a cluster that could be read before cannot be read now."""


@asynccontextmanager
async def connected(reach: Reach) -> AsyncIterator[Connection]:
    """Open a connection to the API server; a terminal says after a second whom it waits for.

    Raises:
        KubeError: there is no usable kubeconfig, or no credential.
    """
    seconds = duration_s(reach.request_timeout)
    access = _access(reach.kubeconfig, reach.context, seconds)
    if access.credentials.waits_for:
        with Progress(f"waiting for {access.credentials.waits_for}", after=_SAY_AFTER_S, piped=_SAY_AFTER_S):
            await access.credentials.current()
    async with Connection(access, within=seconds, attempts=Attempts(seconds=seconds)) as connection:
        with Progress(f"waiting for {access.server}", after=_SAY_AFTER_S, piped=SAY_AFTER_PIPED_S):
            yield connection


@functools.cache
def _access(kubeconfig: Path | None, context: str | None, plugin_s: float) -> Access:
    """Return how the API server is reached: by one credential for all looks, so that a plugin is not asked again."""
    return load_access(kubeconfig, context, plugin_s=plugin_s)


async def listed(
    connection: Connection, path: str, kind: type[T], query: Query = NO_QUERY
) -> tuple[Replaced[T] | None, str | None]:
    """Return the objects at ``path``; None, and why, where they may not be listed; None alone if none are served.

    Raises:
        KubeError: the API server fails.
    """
    try:
        return (await list_pages(connection, path, ObjectDecoder(kind), query))[1], None
    except NotFound:
        return None, None
    except Forbidden as error:
        return None, str(error)


async def readable(connection: Connection, path: str, kind: type[T], query: Query = NO_QUERY) -> Sequence[T]:
    """Return the objects at ``path``, none where they may not be listed or none are served.

    Raises:
        KubeError: the API server fails.
    """
    found, _ = await listed(connection, path, kind, query)
    return found.objects if found is not None else ()


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
        if isinstance(error, AnswerLost):
            why += "; --request-timeout gives it more time"
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
