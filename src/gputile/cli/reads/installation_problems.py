"""Reads what is wrong with an installation as a whole: API server, Helm release, parts, extenders."""

import asyncio
from collections.abc import Sequence

import msgspec

from gputile.api.workloads import DaemonSet, Deployment, HelmRevision, RunningPod, ServerVersion, ServiceAccount
from gputile.cli.reads.bounded_reads import BoundedReads, listed
from gputile.kube.errors import ApiError
from gputile.kube.objects import T
from gputile.tools.views.installation_problem import (
    OTHER_EXTENDERS,
    RELEASE_LABEL,
    InstallationProblem,
    missing_components,
    mixed_images,
    old_server,
    other_extenders,
    unfinished_releases,
)

# What Helm keeps of a revision is as large as the whole chart: where all went well, none is read.
_NOT_ENDED = "owner=helm,status notin (deployed,superseded,uninstalled)"
_DEPLOYED = "owner=helm,status=deployed"


async def installation_problems(
    connection: BoundedReads,
    namespace: str,
    workloads: Sequence[Deployment | DaemonSet],
    release: str,
    selector: str,
    scheduler_name: str,
) -> list[InstallationProblem]:
    """Return what is wrong with the installation in ``namespace``, as far as the user may read it.

    ``release`` is the Helm release that the user asked for, "" for those of the objects that are there, and
    ``selector`` that of the labels of its objects. ``scheduler_name`` is the scheduler that admission gives pods to, ""
    where it is not known.

    Raises:
        KubeError: the cluster cannot be read.
    """
    version, revisions, accounts, others = await asyncio.gather(
        _version(connection),
        _revisions(connection, f"/api/v1/namespaces/{namespace}/secrets"),
        _readable(connection, f"/api/v1/namespaces/{namespace}/serviceaccounts", ServiceAccount, selector),
        asyncio.gather(*(_readable(connection, "/api/v1/pods", RunningPod, labels) for labels in OTHER_EXTENDERS)),
    )
    # A release that Helm has begun to remove, or has only begun to install, may have accounts and no workloads.
    labelled = [each.metadata.labels for each in (*workloads, *accounts)]
    names = {release} if release else {labels.get(RELEASE_LABEL, "") for labels in labelled}
    return [
        *old_server(version),
        *unfinished_releases(revisions, names, namespace),
        *missing_components(workloads, accounts, scheduler_name),
        *mixed_images(workloads),
        *other_extenders(pod for pods in others for pod in pods),
    ]


async def _version(connection: BoundedReads) -> ServerVersion:
    """Return the API server's version, empty where it does not say it."""
    try:
        return msgspec.json.decode(await connection.get("/version"), type=ServerVersion)
    except (ApiError, ValueError, RecursionError):
        return ServerVersion()


async def _revisions(connection: BoundedReads, path: str) -> list[HelmRevision]:
    """Return the revisions that Helm did not bring to their end; and if there are any, those that it did."""
    found = await _readable(connection, path, HelmRevision, _NOT_ENDED)
    return [*found, *await _readable(connection, path, HelmRevision, _DEPLOYED)] if found else []


async def _readable(connection: BoundedReads, path: str, kind: type[T], selector: str) -> list[T]:
    return (await listed(connection, path, kind, {"labelSelector": selector}))[0] or []
