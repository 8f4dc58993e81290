"""Reads the state of an installation from a live cluster."""

import asyncio
import time
from collections.abc import Iterable, Sequence

from gputile.api.core import Node
from gputile.api.workloads import (
    ConfigMap,
    DaemonSet,
    Deployment,
    Event,
    HelmRevision,
    Lease,
    RunningPod,
    ServiceAccount,
    WebhookConfiguration,
)
from gputile.cli.configuration import (
    CONFIG_MAP_KEY,
    GivenConfiguration,
    UnknownConfiguration,
    installed_configuration,
)
from gputile.cli.options import ApiOptions
from gputile.cli.reads.live_cluster import INSTALLED, connected, read_or_exit, readable
from gputile.kube.client import Connection
from gputile.kube.errors import ApiError, KubeError
from gputile.kube.objects import list_all
from gputile.tools.views.installation_problems import (
    OTHER_EXTENDERS,
    RELEASE_LABEL,
    InstallationProblem,
    missing_components,
    other_extenders,
    refused_configuration,
    unfinished_releases,
)
from gputile.tools.views.status import (
    Installation,
    Traces,
    assess,
    traces_of,
    with_problems,
    with_traces,
)


def read_installation(api: ApiOptions, namespace: str, release: str) -> Installation:
    """Read the installation's state. If ``release`` is "", read all releases. Exit on errors."""

    async def read() -> Installation:
        async with connected(api) as connection:
            return await _installation(connection, namespace, release)

    return read_or_exit(read())


async def _installation(connection: Connection, namespace: str, release: str) -> Installation:
    selector = INSTALLED["labelSelector"] + (
        f",app.kubernetes.io/instance={release}" if release else ""
    )
    ours = {"labelSelector": selector}
    apps, core = f"/apis/apps/v1/namespaces/{namespace}", f"/api/v1/namespaces/{namespace}"
    deployments, daemon_sets, pods, events, nodes, maps = await asyncio.gather(
        list_all(connection, f"{apps}/deployments", Deployment, ours),
        list_all(connection, f"{apps}/daemonsets", DaemonSet, ours),
        list_all(connection, f"{core}/pods", RunningPod, ours),
        list_all(connection, f"{core}/events", Event),
        list_all(connection, "/api/v1/nodes", Node),
        list_all(connection, f"{core}/configmaps", ConfigMap, ours),
    )
    workloads: Sequence[Deployment | DaemonSet] = [*deployments, *daemon_sets]
    given = installed_configuration(maps)
    known = given.configuration if isinstance(given, GivenConfiguration) else None
    scheduler_name, unit_mib = (
        (known.scheduler_name, known.unit_mib) if known is not None else ("", 0)
    )
    probes, problems = await asyncio.gather(
        unready_reasons(connection, namespace, pods),
        installation_problems(connection, namespace, workloads, release, selector, scheduler_name),
    )
    is_set = any(CONFIG_MAP_KEY in each.data for each in maps)
    if isinstance(given, UnknownConfiguration) and is_set:
        problems.append(refused_configuration(given.why))
    found = with_problems(assess(workloads, pods, events, nodes, unit_mib, probes), problems)
    return found if found.components else with_traces(found, await _traces(connection, namespace))


async def _traces(connection: Connection, namespace: str) -> Traces:
    """Search the readable Leases and webhooks for services that run outside of pods."""
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    leases, configurations = await asyncio.gather(
        readable(connection, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", Lease),
        readable(connection, hooks, WebhookConfiguration),
    )
    return traces_of(leases, configurations, namespace, time.time())


# Helm records each revision in a large Secret that contains the whole chart. If all revisions are
# complete, no Secret matches this selector, and none is read.
_INCOMPLETE = "owner=helm,status notin (deployed,superseded,uninstalled)"
_DEPLOYED = "owner=helm,status=deployed"


async def installation_problems(
    connection: Connection,
    namespace: str,
    workloads: Sequence[Deployment | DaemonSet],
    release: str,
    selector: str,
    scheduler_name: str,
) -> list[InstallationProblem]:
    """Return the problems of the installation in ``namespace``.

    Kinds that the user may not list are skipped.

    ``release`` is the Helm release that the user named. If it is "", the releases in the labels of
    the objects are checked. ``selector`` is the label selector of the installation's objects.
    ``scheduler_name`` is the scheduler that admission sets in pods, or "" if unknown.

    Raises:
        KubeError: the cluster cannot be read.
    """
    revisions, accounts, others = await asyncio.gather(
        _revisions(connection, f"/api/v1/namespaces/{namespace}/secrets"),
        readable(
            connection,
            f"/api/v1/namespaces/{namespace}/serviceaccounts",
            ServiceAccount,
            {"labelSelector": selector},
        ),
        asyncio.gather(
            *(
                readable(connection, "/api/v1/pods", RunningPod, {"labelSelector": labels})
                for labels in OTHER_EXTENDERS
            )
        ),
    )
    # While Helm installs or removes a release, there may be service accounts but no workloads.
    labelled = [each.metadata.labels for each in (*workloads, *accounts)]
    names = {release} if release else {labels.get(RELEASE_LABEL, "") for labels in labelled}
    return [
        *unfinished_releases(revisions, names, namespace),
        *missing_components(workloads, accounts, scheduler_name),
        *other_extenders(pod for pods in others for pod in pods),
    ]


async def _revisions(connection: Connection, path: str) -> list[HelmRevision]:
    """Return incomplete Helm revisions. If there are any, also return the deployed revisions."""
    found = await readable(connection, path, HelmRevision, {"labelSelector": _INCOMPLETE})
    return (
        [*found, *await readable(connection, path, HelmRevision, {"labelSelector": _DEPLOYED})]
        if found
        else []
    )


_MOST_S = 5.0


async def unready_reasons(
    connection: Connection, namespace: str, pods: Iterable[RunningPod]
) -> dict[str, str]:
    """Return why running pods are not ready, by pod name.

    The reason is the response of the pod's /readyz, which is read through the API server's proxy. A
    pod without a response has no entry, for example if the user may not use the proxy.
    """
    ports = [
        (pod.metadata.name, port) for pod in pods if _is_unready(pod) for port in _health_ports(pod)
    ]
    answers = await asyncio.gather(
        *(_reason(connection, namespace, name, port) for name, port in ports)
    )
    return {
        name: answer for (name, _), answer in zip(ports, answers, strict=True) if answer is not None
    }


def _is_unready(pod: RunningPod) -> bool:
    return (
        pod.status.phase == "Running" and not pod.ready and pod.metadata.deletion_timestamp is None
    )


def _health_ports(pod: RunningPod) -> list[int]:
    return [
        port.container_port
        for container in pod.spec.containers
        for port in container.ports
        if port.name == "metrics"
    ]


async def _reason(connection: Connection, namespace: str, name: str, port: int) -> str | None:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/readyz"
    try:
        await connection.get(path, within=_MOST_S)
    except ApiError as error:
        # An error with a ``reason`` comes from the API server and not from the pod.
        return None if error.reason else error.server_message
    except KubeError:
        return None
    return None
