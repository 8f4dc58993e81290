"""Reading a live cluster once, for commands that look and leave."""

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gputile.api.core import Node, Pod
from gputile.api.pod_groups import POD_GROUP_API_PATH, POD_GROUPS_PATH, PodGroup
from gputile.api.well_known import UNSAFE_ACCESS_LABEL
from gputile.api.workloads import ConfigMap, Event, Namespace
from gputile.cli.bounded_reads import read_or_leave, reads
from gputile.cli.configuration import GivenConfiguration, installed_configuration
from gputile.cli.options import Reach
from gputile.kube.decoding import ObjectDecoder
from gputile.kube.errors import Forbidden, KubeError, NotFound
from gputile.kube.listing import Reading, list_all, list_pages

if TYPE_CHECKING:
    from gputile.tools.simulator.gangs import PodGroups

_MOST_TOLD: Final = 20
INSTALLED = {"labelSelector": "app.kubernetes.io/name=gputile"}


@dataclass(frozen=True, slots=True)
class Live:
    """A cluster's nodes and pods, and the configuration of the gputile in it; ``unknown`` is why that is None.

    ``groups`` are its PodGroups where they were asked for, else None; ``unlisted`` is why they are not known, "" where
    they are.
    ``unsafe_namespaces`` are those whose pods may reach GPUs past the ledger, as far as they may be read.
    ``namespace`` is that of the kubeconfig's context. ``unread`` are sentences on nodes and pods that are there and
    cannot be read: nobody knows what they hold.
    """

    nodes: list[Node]
    pods: list[Pod]
    given: GivenConfiguration | None
    unknown: str = ""
    groups: "PodGroups | None" = None
    unlisted: str = ""
    unsafe_namespaces: frozenset[str] = frozenset()
    namespace: str = "default"
    unread: tuple[str, ...] = ()


def read_cluster(reach: Reach, given: GivenConfiguration | None, installed_in: str, *, groups: bool = False) -> Live:
    """Return what the cluster has; leave the program where it cannot be read.

    The configuration is ``given``, else read in the namespace ``installed_in``, where that may be read.
    ``groups`` asks for PodGroups too.
    """

    async def read() -> Live:
        async with reads(reach) as connection:
            (_, nodes), (_, pods), found = await asyncio.gather(
                list_pages(connection, "/api/v1/nodes", ObjectDecoder(Node), {}),
                list_pages(connection, "/api/v1/pods", ObjectDecoder(Pod), {}),
                _configuration(connection, given, installed_in),
            )
            unread = (
                *_told("nodes", [f"node {each.name} cannot be read: {each.why}" for each in nodes.unreadable]),
                *_told(
                    "pods",
                    [f"pod {each.namespace}/{each.name} cannot be read: {each.why}" for each in pods.unreadable],
                ),
            )
            read = Live(list(nodes.objects), list(pods.objects), *found, namespace=connection.namespace, unread=unread)
            if not groups:
                return read
            known, unlisted = await read_groups(connection)
            unsafe = await read_unsafe_namespaces(connection)
            return replace(read, groups=known, unlisted=unlisted, unsafe_namespaces=unsafe)

    return read_or_leave(read())


def read_failed_creations(reach: Reach, namespace: str) -> list[Event]:
    """Return a namespace's events of pods that could not be created; none where they may not be read."""

    async def read() -> list[Event]:
        async with reads(reach) as connection:
            failed = {"fieldSelector": "reason=FailedCreate"}
            try:
                return await list_all(connection, f"/api/v1/namespaces/{namespace}/events", Event, failed)
            except KubeError:
                return []

    return read_or_leave(read())


def _told(what: str, sentences: list[str]) -> list[str]:
    """Return the first of the sentences, and how many more of the kind there are."""
    more = len(sentences) - _MOST_TOLD
    return [*sentences[:_MOST_TOLD], *([f"{more:,} more {what} cannot be read"] if more > 0 else ())]


async def _configuration(
    connection: Reading, given: GivenConfiguration | None, namespace: str
) -> tuple[GivenConfiguration | None, str]:
    """Return the configuration, read where none is ``given``; None, and why, where it cannot be read."""
    if given is not None:
        return given, ""
    try:
        maps = await list_all(connection, f"/api/v1/namespaces/{namespace}/configmaps", ConfigMap, INSTALLED)
    except KubeError as error:
        return None, str(error)
    found, why = installed_configuration(maps)
    return found, f"namespace {namespace}: {why}" if why else ""


async def read_groups(connection: Reading) -> "tuple[PodGroups, str]":
    """Return the PodGroups, none where their kind is not installed; and why they are not known, "" where they are."""
    from gputile.tools.simulator.gangs import PodGroups

    try:
        _, listed = await list_pages(connection, POD_GROUPS_PATH, ObjectDecoder(PodGroup), {})
    except NotFound:
        return PodGroups(), ""
    except KubeError as error:
        if isinstance(error, Forbidden) and not await _has_pod_group_api(connection):
            return PodGroups(), ""
        return PodGroups(), str(error)
    groups = PodGroups(absent="is neither in the cluster nor in the files")
    for group in listed.objects:
        groups.add(group)
    for each in listed.unreadable:
        groups.unreadable[each.namespace, each.name] = each.why
    return groups, ""


async def read_unsafe_namespaces(connection: Reading) -> frozenset[str]:
    """Return the namespaces that are labelled so; none where they may not be listed."""
    labelled = {"labelSelector": f"{UNSAFE_ACCESS_LABEL}=allowed"}
    try:
        found = await list_all(connection, "/api/v1/namespaces", Namespace, labelled)
    except KubeError:
        return frozenset()
    return frozenset(namespace.metadata.name for namespace in found)


async def _has_pod_group_api(connection: Reading) -> bool:
    """Return whether there may be PodGroups: who lacks the right gets a 403 for a kind that is not installed, too."""
    try:
        await connection.get(POD_GROUP_API_PATH)
    except NotFound:
        return False
    except KubeError:
        pass
    return True
