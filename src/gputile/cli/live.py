"""Reading a live cluster once, for commands that look and leave."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from gputile.api.core import Node, Pod
from gputile.api.workloads import ConfigMap
from gputile.cli.configuration import Given, installed_configuration
from gputile.cli.output import fail
from gputile.kube.connection import Connection
from gputile.kube.errors import KubeError
from gputile.kube.kubeconfig import load_access
from gputile.kube.listing import list_all

UNREACHABLE = 1
INSTALLED = {"labelSelector": "app.kubernetes.io/name=gputile"}


@dataclass(frozen=True, slots=True)
class Live:
    """A cluster's nodes and pods, and the configuration of the gputile in it; ``unknown`` is why that is None."""

    nodes: list[Node]
    pods: list[Pod]
    given: Given | None
    unknown: str = ""


def read_cluster(kubeconfig: Path | None, context: str | None, given: Given | None, installed_in: str) -> Live:
    """Return what the cluster has; leave the program where it cannot be read.

    The configuration is ``given``, else read in the namespace ``installed_in``, where that may be read.
    """

    async def read() -> Live:
        async with Connection(load_access(kubeconfig, context)) as connection:
            nodes = await list_all(connection, "/api/v1/nodes", Node)
            pods = await list_all(connection, "/api/v1/pods", Pod)
            if given is not None:
                return Live(nodes, pods, given)
            return Live(nodes, pods, *await _configuration(connection, installed_in))

    try:
        return asyncio.run(read())
    except KubeError as error:
        fail(f"cannot read the cluster: {error}", UNREACHABLE)


async def _configuration(connection: Connection, namespace: str) -> tuple[Given | None, str]:
    try:
        maps = await list_all(connection, f"/api/v1/namespaces/{namespace}/configmaps", ConfigMap, INSTALLED)
    except KubeError as error:
        return None, str(error)
    found, why = installed_configuration(maps)
    return found, f"namespace {namespace}: {why}" if why else ""
