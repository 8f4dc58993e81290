"""Lists what a word of the command line may become: valid values, and names in the cluster.

A shell waits for it in the middle of a line, so nothing is said, nothing is asked, and what takes long is given up.
"""

import os
import signal
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from gputile.kube.config import Access

WITHIN_S = 1.5
GIVEN_UP_AFTER_S = 2.0  # for what no time-out ends: a name server that does not answer, a file system that hangs


def policies() -> list[str]:
    """Return the policies of a replay."""
    from gputile.tools.replay.study import POLICIES

    return list(POLICIES)


def contexts(ctx: typer.Context) -> list[str]:
    """Return the contexts of the kubeconfig."""
    from gputile.kube.config import context_names

    return _bounded(lambda: context_names(ctx.params.get("kubeconfig")))


def namespaces(ctx: typer.Context) -> list[str]:
    """Return the cluster's namespaces."""
    return _bounded(lambda: _names(_access(ctx), "/api/v1/namespaces"))


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the nodes of the live cluster, but those that are named already."""
    named = {*(ctx.params.get("names") or ()), *(ctx.params.get("without_node") or ())} - {incomplete}

    def read() -> list[str]:
        live = ctx.params.get("from_cluster", not ctx.params.get("cluster"))
        found = _names(_access(ctx), "/api/v1/nodes") if live else []
        return [name for name in found if name not in named]

    return _bounded(read)


def pods(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the pods of a namespace: the one before "/", which stays, else that of --namespace or of the context."""
    before, slash, _ = incomplete.rpartition("/")

    def read() -> list[str]:
        access = _access(ctx)
        namespace = before or ctx.params.get("namespace") or access.namespace
        names = _names(access, f"/api/v1/namespaces/{namespace}/pods")
        return [f"{before}{slash}{name}" for name in names]

    return _bounded(read)


def _bounded(read: Callable[[], Iterable[str]]) -> list[str]:
    """Return what is read in time, nothing where it fails; a process that hangs ends without a word."""
    before = signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, GIVEN_UP_AFTER_S)
    try:
        return sorted(read())
    except Exception:  # whatever is the matter: the command itself will say it
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _access(ctx: typer.Context) -> "Access":
    from gputile.kube.config import load_access

    return load_access(ctx.params.get("kubeconfig"), ctx.params.get("context"))


def _names(access: "Access", path: str) -> list[str]:
    """Return the names of the objects at ``path``: those of as many pages as come in time."""
    import asyncio
    import contextlib

    import msgspec

    from gputile.api.core import ListMeta, ObjectMeta
    from gputile.kube.client import MOST_ANSWER_BYTES, Connection
    from gputile.kube.objects import PAGE_SIZE

    class Named(msgspec.Struct):
        metadata: ObjectMeta

    class Names(msgspec.Struct):
        metadata: ListMeta
        items: list[Named] = []

    found: list[str] = []

    async def read() -> None:
        await access.credentials.current()
        async with Connection(access, most_bytes=MOST_ANSWER_BYTES) as connection:
            query: dict[str, Any] = {"limit": str(PAGE_SIZE)}
            while True:
                page = msgspec.json.decode(await connection.get(path, query), type=Names)
                found.extend(each.metadata.name for each in page.items)
                if not page.metadata.continue_:
                    return
                query["continue"] = page.metadata.continue_

    async def bounded() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                await read()

    asyncio.run(bounded())
    return found
