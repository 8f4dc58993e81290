"""Reads the objects of a live cluster for commands, within a time limit."""

import asyncio
import functools
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

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
from gputile.cli.configuration import (
    GivenConfiguration,
    UnknownConfiguration,
    assumed,
    in_force,
    installed_configuration,
)
from gputile.cli.options import ApiOptions, time_limit_s
from gputile.cli.terminal import BAD_INPUT, SAY_AFTER_PIPED_S, ExitCode, Progress, fail
from gputile.core.ledger.node_info import unit_in_force
from gputile.kube.client import NO_QUERY, Attempts, Connection, Query
from gputile.kube.config import Access, load_access
from gputile.kube.errors import (
    AnswerLost,
    BadAnswer,
    ConfigError,
    Forbidden,
    KubeError,
    NotFound,
    PluginTimeout,
)
from gputile.kube.objects import ObjectDecoder, Replaced, T, UnreadableObject, list_all, list_pages

if TYPE_CHECKING:
    from gputile.api.config.v1alpha1 import Configuration
    from gputile.tools.simulator.admission import PriorityClasses
    from gputile.tools.simulator.controller_rules import PodGroups

UNREACHABLE: Final = ExitCode.FAILED
Read = TypeVar("Read")
_SAY_AFTER_S: Final = 1.0
_rereading: Final = ContextVar("rereading", default=False)


class Unreadable(Exception):
    """A cluster that was read before cannot be read now. The message states the reason."""


@asynccontextmanager
async def connected(api: ApiOptions) -> AsyncIterator[Connection]:
    """Open a connection to the API server, and show a progress line if the server is slow.

    Raises:
        KubeError: there is no usable kubeconfig or credential.
    """
    seconds = time_limit_s(api.request_timeout)
    access = _access(api.kubeconfig, api.context, seconds)
    if access.credentials.waits_for:
        with Progress(
            f"waiting for {access.credentials.waits_for}", after=_SAY_AFTER_S, piped=_SAY_AFTER_S
        ):
            await access.credentials.current()
    async with Connection(access, within=seconds, attempts=Attempts(seconds=seconds)) as connection:
        with Progress(f"waiting for {access.server}", after=_SAY_AFTER_S, piped=SAY_AFTER_PIPED_S):
            yield connection


@functools.cache
def _access(kubeconfig: Path | None, context: str | None, plugin_s: float) -> Access:
    """Load the credentials. The result is cached, so that a credential plugin runs only once."""
    return load_access(kubeconfig, context, plugin_s=plugin_s)


async def listed(
    connection: Connection, path: str, kind: type[T], query: Query = NO_QUERY
) -> tuple[Replaced[T] | None, str | None]:
    """List the objects at ``path``.

    Return the objects and None, or None and the reason if listing is forbidden. If the API server
    does not serve ``path``, return None and None.

    Raises:
        KubeError: the API server fails.
    """
    try:
        return (await list_pages(connection, path, ObjectDecoder(kind), query))[1], None
    except NotFound:
        return None, None
    except Forbidden as error:
        return None, str(error)


async def readable(
    connection: Connection, path: str, kind: type[T], query: Query = NO_QUERY
) -> Sequence[T]:
    """List the objects at ``path``. Return () if listing is forbidden or ``path`` is not served.

    Raises:
        KubeError: the API server fails.
    """
    found, _ = await listed(connection, path, kind, query)
    return found.objects if found is not None else ()


def read_or_exit(reading: Coroutine[Any, Any, Read]) -> Read:
    """Run ``reading``, and return its result. If the cluster is unreadable, exit with the reason.

    Raises:
        Unreadable: raised instead of exiting inside ``with rereading()``.
    """
    try:
        return asyncio.run(reading)
    except KubeError as error:
        why = f"cannot read the cluster: {error}"
        if isinstance(error, PluginTimeout):
            why += (
                "; run the plugin by itself to see what it waits for, or set a longer "
                "--request-timeout"
            )
        if isinstance(error, AnswerLost):
            why += "; set a longer --request-timeout"
        if _rereading.get():
            raise Unreadable(why) from error
        # After a BadAnswer, the server in the kubeconfig is probably not an API server.
        fail(why, BAD_INPUT if isinstance(error, ConfigError | BadAnswer) else UNREACHABLE)


@contextmanager
def rereading() -> Iterator[None]:
    """Make ``read_or_exit`` raise ``Unreadable`` instead of exiting, for refreshed output."""
    before = _rereading.set(True)
    try:
        yield
    finally:
        _rereading.reset(before)


_MOST_NAMED: Final = 20  # unreadable objects for each kind
# Raised if the user may not read the objects, or the API server does not serve their kind.
_UNAVAILABLE: Final = (Forbidden, NotFound)
_ALLOWED: Final = "allowed"
_NAMESPACES: Final = "/api/v1/namespaces"
_BUDGETS: Final = "/apis/policy/v1/poddisruptionbudgets"
_PRIORITY_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
INSTALLED = {"labelSelector": "app.kubernetes.io/name=gputile"}


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """The objects of a live cluster and its configuration, as read by a command."""

    nodes: list[Node]
    pods: list[Pod]
    configuration: GivenConfiguration | UnknownConfiguration
    # The next four fields are read only if ``read_cluster`` is called with ``groups``.
    groups: "PodGroups | None" = None
    namespaces: Sequence[Namespace] = ()
    priority_classes: "PriorityClasses | None" = None
    budgets: Sequence[PodDisruptionBudget] = ()
    # The reasons why kinds could not be listed, by the name of the kind.
    unlisted: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"  # of the kubeconfig's context
    unread: tuple[str, ...] = ()  # messages about objects that could not be decoded
    claims: Sequence[ResourceClaim] | None = ()  # None if they could not be listed

    @property
    def given(self) -> GivenConfiguration | None:
        return self.configuration if isinstance(self.configuration, GivenConfiguration) else None

    def in_force(self) -> "Configuration":
        """Return the configuration. If it is unknown, assume one and print the assumptions."""
        found = in_force(self.given, None, unit_in_force(self.nodes))
        return (
            found
            if isinstance(self.configuration, GivenConfiguration)
            else assumed(found, self.configuration.why)
        )


def read_cluster(
    api: ApiOptions, given: GivenConfiguration | None, installed_in: str, *, groups: bool = False
) -> LiveCluster:
    """Read the objects of the cluster. Exit if the cluster cannot be read.

    The configuration is ``given``, or is read from the namespace ``installed_in`` if ``given`` is
    None. With ``groups``, also read PodGroups, namespaces, PriorityClasses and
    PodDisruptionBudgets.
    """

    async def read() -> LiveCluster:
        async with connected(api) as connection:
            (_, nodes), (_, pods), (claims, no_claims), found = await asyncio.gather(
                list_pages(connection, "/api/v1/nodes", ObjectDecoder(Node), {}),
                list_pages(connection, "/api/v1/pods", ObjectDecoder(Pod), {}),
                listed(connection, RESOURCE_CLAIMS_PATH, ResourceClaim),
                _configuration(connection, given, installed_in),
            )
            unread = [*_unread("node", nodes.unreadable), *_unread("pod", pods.unreadable)]
            unread += _unread("ResourceClaim", claims.unreadable if claims is not None else ())
            read = LiveCluster(
                list(nodes.objects),
                list(pods.objects),
                found,
                namespace=connection.namespace,
                unread=tuple(unread),
                claims=claims.objects if claims is not None else None,
            )
            if no_claims is not None and _may_use_claims(read.nodes, read.pods):
                read = replace(read, unlisted={"ResourceClaims": no_claims})
            return await _with_groups(connection, read) if groups else read

    return read_or_exit(read())


async def _with_groups(connection: Connection, read: LiveCluster) -> LiveCluster:
    """Read the objects that only a simulation needs, and add them to ``read``."""
    from gputile.tools.simulator.admission import listed_classes

    groups, no_groups = await read_groups(connection)
    namespaces, no_namespaces = await listed(connection, _NAMESPACES, Namespace)
    budgets, no_budgets = await listed(connection, _BUDGETS, PodDisruptionBudget)
    classes, no_classes = await listed(connection, _PRIORITY_CLASSES, ListedPriorityClass)
    unlisted = {
        **read.unlisted,
        "PodGroups": no_groups,
        "PriorityClasses": no_classes,
        "PodDisruptionBudgets": no_budgets,
        "namespaces": no_namespaces,
    }
    return replace(
        read,
        groups=groups,
        namespaces=namespaces.objects if namespaces is not None else (),
        priority_classes=listed_classes(classes.objects) if classes is not None else None,
        budgets=budgets.objects if budgets is not None else (),
        unlisted={kind: why for kind, why in unlisted.items() if why is not None},
    )


def read_failed_creations(api: ApiOptions, namespace: str) -> Sequence[Event]:
    """Return Events about pods that could not be created, or none if listing is forbidden."""

    async def read() -> Sequence[Event]:
        async with connected(api) as connection:
            failed = {"fieldSelector": "reason=FailedCreate"}
            return await readable(
                connection, f"/api/v1/namespaces/{namespace}/events", Event, failed
            )

    return read_or_exit(read())


def _unread(kind: str, objects: Sequence[UnreadableObject]) -> list[str]:
    """Return messages about the first ``_MOST_NAMED`` objects, and one that counts the others."""
    names = [f"{each.namespace}/{each.name}" if each.namespace else each.name for each in objects]
    found = [
        f"{kind} {name} cannot be read: {each.why}"
        for name, each in zip(names, objects, strict=True)
    ]
    more = len(found) - _MOST_NAMED
    return [*found[:_MOST_NAMED], *([f"{more:,} more {kind}s cannot be read"] if more > 0 else ())]


async def _configuration(
    connection: Connection, given: GivenConfiguration | None, namespace: str
) -> GivenConfiguration | UnknownConfiguration:
    """Return ``given``, or the configuration in ``namespace`` if ``given`` is None.

    Raises:
        KubeError: the API server fails.
    """
    if given is not None:
        return given
    try:
        maps = await list_all(
            connection, f"/api/v1/namespaces/{namespace}/configmaps", ConfigMap, INSTALLED
        )
    except _UNAVAILABLE as error:
        return UnknownConfiguration(str(error))
    found = installed_configuration(maps)
    if isinstance(found, UnknownConfiguration):
        return UnknownConfiguration(f"namespace {namespace}: {found.why}")
    return found


def _may_use_claims(nodes: Iterable[Node], pods: Iterable[Pod]) -> bool:
    """Return whether claims may use GPUs. If not, a missing right to list claims is harmless."""
    return any(CLAIMS_LABEL in node.metadata.labels for node in nodes) or any(
        pod.spec.resource_claims for pod in pods
    )


async def read_groups(connection: Connection) -> "tuple[PodGroups, str | None]":
    """Return the PodGroups, and the reason why they are unknown, or None if they are known.

    The PodGroups are empty if they are unknown or the kind PodGroup is not installed.

    Raises:
        KubeError: the API server fails.
    """
    from gputile.tools.simulator.controller_rules import PodGroups

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
    """Return the PodDisruptionBudgets, or None if the user may not list them."""
    budgets, _ = await listed(connection, _BUDGETS, PodDisruptionBudget)
    return budgets.objects if budgets is not None else None


def unsafe_namespaces(namespaces: Iterable[Namespace]) -> frozenset[str]:
    """Return the names of the namespaces labelled ``gputile.io/unsafe-gpu-access=allowed``."""
    labels = {each.metadata.name: each.metadata.labels for each in namespaces}
    return frozenset(
        name for name, found in labels.items() if found.get(UNSAFE_ACCESS_LABEL) == _ALLOWED
    )


async def read_unsafe_namespaces(connection: Connection) -> frozenset[str]:
    """Return the names of the namespaces whose pods may use GPUs without a booking.

    The result is empty if the user may not list namespaces.

    Raises:
        KubeError: the API server fails.
    """
    labelled = {"labelSelector": f"{UNSAFE_ACCESS_LABEL}={_ALLOWED}"}
    return unsafe_namespaces(await readable(connection, _NAMESPACES, Namespace, labelled))


async def _has_pod_group_api(connection: Connection) -> bool:
    """Return whether the API server may serve the kind PodGroup.

    A 403 for a list of PodGroups leaves this open, because RBAC answers 403 even for unknown kinds.
    """
    try:
        await connection.get(POD_GROUP_API_PATH)
    except NotFound:
        return False
    except Forbidden:
        pass
    return True
