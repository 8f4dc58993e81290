"""Lists what a word of the command line may become: valid values, and names in the cluster.

A shell waits for it in the middle of a line, so nothing is said, nothing is asked, and what takes long is given up.
"""

import os
import signal
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

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
    """Return the names of the objects at ``path``."""
    import asyncio

    from gputile.api.core import StoredObject
    from gputile.kube.client import Connection
    from gputile.kube.objects import list_all

    async def read() -> list[str]:
        async with asyncio.timeout(WITHIN_S), Connection(access) as connection:
            return [each.metadata.name for each in await list_all(connection, path, StoredObject)]

    return asyncio.run(read())
