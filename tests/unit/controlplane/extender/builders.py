"""Pods, nodes and an extender's parts, built the same way in every test here."""

from gputile.api.core import Container, Node, ObjectMeta, Pod, PodSpec, ResourceRequirements
from gputile.api.well_known import GPU_MEMORY
from tests.fakes import corebuilders


def gpu_node(name: str, gpus: int = 2, mib: int = 15 * 1024, mode: str = "share") -> Node:
    return corebuilders.gpu_node(name, mode=mode, sizes=[mib] * gpus)


def gpu_pod(
    name: str, units: int = 5, *, uid: str = "", namespace: str = "default", priority: int | None = None
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-{name}"),
        spec=PodSpec(
            containers=(Container(name="main", resources=ResourceRequirements(limits={GPU_MEMORY: str(units)})),),
            priority=priority,
        ),
    )
