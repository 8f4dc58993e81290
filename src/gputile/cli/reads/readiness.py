"""Reads the readiness probes of gputile's pods, which say why a pod is not ready."""

import asyncio
from collections.abc import Iterable

from gputile.api.workloads import RunningPod
from gputile.cli.reads.bounded_reads import BoundedReads
from gputile.kube.errors import ApiError, KubeError

_MOST_S = 5.0


async def unready_reasons(connection: BoundedReads, namespace: str, pods: Iterable[RunningPod]) -> dict[str, str]:
    """Ask, through the API server, each pod that runs and is not ready; return the reasons by the pods' names.

    One that does not answer has none, as have all where the user may not reach pods this way.
    """
    asked = [(pod.metadata.name, port) for pod in pods if _waits(pod) for port in _health_ports(pod)]
    answers = await asyncio.gather(*(_reason(connection, namespace, name, port) for name, port in asked))
    return {name: answer for (name, _), answer in zip(asked, answers, strict=True) if answer is not None}


def _waits(pod: RunningPod) -> bool:
    return pod.status.phase == "Running" and not pod.ready and pod.metadata.deletion_timestamp is None


def _health_ports(pod: RunningPod) -> list[int]:
    return [
        port.container_port for container in pod.spec.containers for port in container.ports if port.name == "metrics"
    ]


async def _reason(connection: BoundedReads, namespace: str, name: str, port: int) -> str | None:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/readyz"
    try:
        await connection.get(path, within=_MOST_S)
    except ApiError as error:
        return None if error.reason else error.said  # with a reason, it is the API server's own answer
    except KubeError:
        return None
    return None
