"""Reading a live cluster once, for commands that look and leave."""

import asyncio
from pathlib import Path

from gputile.api.core import Node, Pod
from gputile.cli.output import fail
from gputile.kube.connection import Connection
from gputile.kube.errors import KubeError
from gputile.kube.kubeconfig import load_access
from gputile.kube.listing import list_all

UNREACHABLE = 1


def read_cluster(kubeconfig: Path | None, context: str | None) -> tuple[list[Node], list[Pod]]:
    """Return the nodes and pods of the cluster; leave the program where it cannot be read."""

    async def read() -> tuple[list[Node], list[Pod]]:
        async with Connection(load_access(kubeconfig, context)) as connection:
            return (
                await list_all(connection, "/api/v1/nodes", Node),
                await list_all(connection, "/api/v1/pods", Pod),
            )

    try:
        return asyncio.run(read())
    except KubeError as error:
        fail(f"cannot read the cluster: {error}", UNREACHABLE)
