"""Reads a live cluster once, for commands that look and leave."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from gputile.api.core import Node, Pod
from gputile.api.resource_claims import RESOURCE_CLAIMS_PATH, ResourceClaim
from gputile.api.well_known import CLAIMS_LABEL, UNSAFE_ACCESS_LABEL
from gputile.api.workloads import (
    POD_GROUP_API_PATH,
    POD_GROUPS_PATH,
    ConfigMap,
    Event,
    ListedPriorityClass,
    Namespace,
    PodDisruptionBudget,
    PodGroup,
)
from gputile.cli.options.common import Reach
from gputile.cli.options.configuration import (
    GivenConfiguration,
    UnknownConfiguration,
    assumed,
    in_force,
    installed_configuration,
)
from gputile.cli.reads.bounded_reads import connected, listed, read_or_leave, readable
from gputile.core.ledger.node_info import unit_in_force
from gputile.kube.client import Connection, list_all, list_pages
from gputile.kube.errors import Forbidden, NotFound
from gputile.kube.objects import ObjectDecoder

if TYPE_CHECKING:
    from gputile.api.config.v1alpha1 import Configuration
    from gputile.tools.simulator.admission import PriorityClasses
    from gputile.tools.simulator.gangs import PodGroups

_MOST_TOLD: Final = 20
# Who reads a cluster may lack a right, or the kind be absent. Any other failure says nothing of what is there.
_NOT_FOR_US: Final = (Forbidden, NotFound)
_ALLOWED: Final = "allowed"
_NAMESPACES: Final = "/api/v1/namespaces"
_BUDGETS: Final = "/apis/policy/v1/poddisruptionbudgets"
_PRIORITY_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
INSTALLED = {"labelSelector": "app.kubernetes.io/name=gputile"}


@dataclass(frozen=True, slots=True)
class Live:
    """A cluster's nodes and pods, and the configuration of the gputile in it, or why that is not known.

    ``groups``, ``namespaces``, ``priority_classes`` and ``budgets`` are its own where they were asked for; ``unlisted``
    says by kind why they are not known.
    ``namespace`` is that of the kubeconfig's context. ``unread`` are sentences on nodes and pods that are there and
    cannot be read: nobody knows what they hold. ``claims`` are its ResourceClaims, None where there are
    none to be listed.
    """

    nodes: list[Node]
    pods: list[Pod]
    configuration: GivenConfiguration | UnknownConfiguration
    groups: "PodGroups | None" = None
    namespaces: Sequence[Namespace] = ()
    priority_classes: "PriorityClasses | None" = None
    budgets: Sequence[PodDisruptionBudget] = ()
    unlisted: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"
    unread: tuple[str, ...] = ()
    claims: Sequence[ResourceClaim] | None = ()

    @property
    def given(self) -> GivenConfiguration | None:
        """The configuration, None where it is not known."""
        return self.configuration if isinstance(self.configuration, GivenConfiguration) else None

    def in_force(self) -> "Configuration":
        """Return the configuration in force; say what is assumed where it is not known."""
        found = in_force(self.given, None, unit_in_force(self.nodes))
        return found if isinstance(self.configuration, GivenConfiguration) else assumed(found, self.configuration.why)


def read_cluster(reach: Reach, given: GivenConfiguration | None, installed_in: str, *, groups: bool = False) -> Live:
    """Return what the cluster has; leave the program where it cannot be read.

    The configuration is ``given``, else read in the namespace ``installed_in``, where that may be read.
    ``groups`` asks for PodGroups too.
    """

    async def read() -> Live:
        async with connected(reach) as connection:
            (_, nodes), (_, pods), (claims, no_claims), found = await asyncio.gather(
                list_pages(connection, "/api/v1/nodes", ObjectDecoder(Node), {}),
                list_pages(connection, "/api/v1/pods", ObjectDecoder(Pod), {}),
                listed(connection, RESOURCE_CLAIMS_PATH, ResourceClaim),
                _configuration(connection, given, installed_in),
            )
            unread_claims = claims.unreadable if claims is not None else ()
            unread = (
                *_told("nodes", [f"node {each.name} cannot be read: {each.why}" for each in nodes.unreadable]),
                *_told(
                    "pods",
                    [f"pod {each.namespace}/{each.name} cannot be read: {each.why}" for each in pods.unreadable],
                ),
                *_told(
                    "ResourceClaims",
                    [f"claim {each.namespace}/{each.name} cannot be read: {each.why}" for each in unread_claims],
                ),
            )
            read = Live(
                list(nodes.objects),
                list(pods.objects),
                found,
                namespace=connection.namespace,
                unread=unread,
                claims=claims.objects if claims is not None else None,
            )
            if no_claims is not None and _concern_claims(read.nodes, read.pods):
                read = replace(read, unlisted={"ResourceClaims": no_claims})
            return await _with_groups(connection, read) if groups else read

    return read_or_leave(read())


async def _with_groups(connection: Connection, read: Live) -> Live:
    """Return the cluster with what a simulation needs beside nodes, pods and claims."""
    from gputile.tools.simulator.admission import listed_classes

    known, no_groups = await read_groups(connection)
    namespaces, no_namespaces = await listed(connection, _NAMESPACES, Namespace)
    budgets, no_budgets = await listed(connection, _BUDGETS, PodDisruptionBudget)
    classes, no_classes = await listed(connection, _PRIORITY_CLASSES, ListedPriorityClass)
    unlisted = {
        "PodGroups": no_groups,
        "PriorityClasses": no_classes,
        "PodDisruptionBudgets": no_budgets,
        "namespaces": no_namespaces,
    }
    return replace(
        read,
        groups=known,
        namespaces=namespaces.objects if namespaces is not None else (),
        priority_classes=listed_classes(classes.objects) if classes is not None else None,
        budgets=budgets.objects if budgets is not None else (),
        unlisted={**read.unlisted, **{kind: why for kind, why in unlisted.items() if why is not None}},
    )


def read_failed_creations(reach: Reach, namespace: str) -> Sequence[Event]:
    """Return a namespace's events of pods that could not be created; none where they may not be read."""

    async def read() -> Sequence[Event]:
        async with connected(reach) as connection:
            failed = {"fieldSelector": "reason=FailedCreate"}
            return await readable(connection, f"/api/v1/namespaces/{namespace}/events", Event, failed)

    return read_or_leave(read())


def _told(what: str, sentences: list[str]) -> list[str]:
    """Return the first of the sentences, and how many more of the kind there are."""
    more = len(sentences) - _MOST_TOLD
    return [*sentences[:_MOST_TOLD], *([f"{more:,} more {what} cannot be read"] if more > 0 else ())]


async def _configuration(
    connection: Connection, given: GivenConfiguration | None, namespace: str
) -> GivenConfiguration | UnknownConfiguration:
    """Return the configuration, read where none is ``given``; or why it is not there or may not be read.

    Raises:
        KubeError: the API server fails.
    """
    if given is not None:
        return given
    try:
        maps = await list_all(connection, f"/api/v1/namespaces/{namespace}/configmaps", ConfigMap, INSTALLED)
    except _NOT_FOR_US as error:
        return UnknownConfiguration(str(error))
    found = installed_configuration(maps)
    if isinstance(found, UnknownConfiguration):
        return UnknownConfiguration(f"namespace {namespace}: {found.why}")
    return found


def _concern_claims(nodes: Iterable[Node], pods: Iterable[Pod]) -> bool:
    """Return whether claims may hold GPUs: without their right, who has none of them shall not read of them."""
    return any(CLAIMS_LABEL in node.metadata.labels for node in nodes) or any(pod.spec.resource_claims for pod in pods)


async def read_groups(connection: Connection) -> "tuple[PodGroups, str | None]":
    """Return the PodGroups, none where their kind is not installed; and why they are not known, None where they are.

    Raises:
        KubeError: the API server fails.
    """
    from gputile.tools.simulator.gangs import PodGroups

    found, why = await listed(connection, POD_GROUPS_PATH, PodGroup)
    if found is None:
        return PodGroups(), why if why is None or await _has_pod_group_api(connection) else None
    groups = PodGroups(absent="is neither in the cluster nor in the files")
    for group in found.objects:
        groups.add(group)
    for each in found.unreadable:
        groups.unreadable[each.namespace, each.name] = each.why
    return groups, None


async def read_budgets(connection: Connection) -> Sequence[PodDisruptionBudget] | None:
    """Return the PodDisruptionBudgets; None where they may not be listed."""
    budgets, _ = await listed(connection, _BUDGETS, PodDisruptionBudget)
    return budgets.objects if budgets is not None else None


def unsafe_namespaces(namespaces: Iterable[Namespace]) -> frozenset[str]:
    """Return the names of those whose pods may reach GPUs past the ledger."""
    labels = {each.metadata.name: each.metadata.labels for each in namespaces}
    return frozenset(name for name, found in labels.items() if found.get(UNSAFE_ACCESS_LABEL) == _ALLOWED)


async def read_unsafe_namespaces(connection: Connection) -> frozenset[str]:
    """Return the namespaces whose pods may reach GPUs past the ledger; none where they may not be listed.

    Raises:
        KubeError: the API server fails.
    """
    labelled = {"labelSelector": f"{UNSAFE_ACCESS_LABEL}={_ALLOWED}"}
    return unsafe_namespaces(await readable(connection, _NAMESPACES, Namespace, labelled))


async def _has_pod_group_api(connection: Connection) -> bool:
    """Return whether there may be PodGroups: who lacks the right gets a 403 for a kind that is not installed, too."""
    try:
        await connection.get(POD_GROUP_API_PATH)
    except NotFound:
        return False
    except Forbidden:
        pass
    return True
