"""A node that gives its GPUs by claims, and claims that kube-scheduler has allocated there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, ContainerClaim, ObjectMeta, Pod, PodResourceClaim, ResourceRequirements
from gputile.api.resource_claims import (
    AllocatedDevice,
    ClaimAllocation,
    ClaimConsumer,
    DeviceAllocation,
    ResourceClaim,
    ResourceClaimStatus,
)
from gputile.api.well_known import DRIVER, Mode
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.node_config import EffectiveMode, Sharing, node_config_of
from gputile.node.nvml.gpu_health import Health
from gputile.node.nvml.probe import ProbedMachine
from tests.fakes.agentcluster import NODE, simple_pod


def claims_node(
    mode: Mode, machine: ProbedMachine, *, sharing: Sharing = Sharing.NONE, claims: bool = True
) -> AllocationState:
    effective = EffectiveMode(mode, 1024, sharing, claims=claims)
    return AllocationState(Configuration(), node_config_of(machine, Health(), effective, None, None))


@dataclass(frozen=True)
class Given:
    """A result of an allocation: the device, and what it takes of it."""

    device: str
    amounts: Mapping[str, str]
    driver: str = DRIVER
    pool: str = NODE
    admin: bool | None = None


def share(index: int, memory: str, **amounts: str) -> Given:
    return Given(f"gpu-{index}", {"memory": memory, "pods": "1", **amounts})


def allocated(name: str, *results: Given, uid: str = "", pods: tuple[str, ...] = ("pod",)) -> ResourceClaim:
    """Return a claim that is allocated and reserved for ``pods``, whose UIDs are like their names."""
    devices = [
        AllocatedDevice(
            request=f"r{place}",
            driver=each.driver,
            pool=each.pool,
            device=each.device,
            admin_access=each.admin,
            share_id=f"share-{place}",
            consumed_capacity=dict(each.amounts),
        )
        for place, each in enumerate(results)
    ]
    allocation = ClaimAllocation(devices=DeviceAllocation(results=tuple(devices))) if devices else None
    reserved = tuple(ClaimConsumer(resource="pods", name=pod, uid=f"uid-{pod}") for pod in pods)
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}"),
        status=ResourceClaimStatus(allocation=allocation, reserved_for=reserved),
    )


def claiming_pod(name: str, uses: Mapping[str, Sequence[str]]) -> Pod:
    """Return a pod, with a UID like its name, whose containers use claims; the pod's names for them are another's."""
    containers = [
        Container(
            name=container,
            resources=ResourceRequirements(claims=tuple(ContainerClaim(name=f"my-{each}") for each in claims)),
        )
        for container, claims in uses.items()
    ]
    names = sorted({each for claims in uses.values() for each in claims})
    pod = simple_pod(name, *containers)
    pod.metadata.uid = f"uid-{name}"
    pod.spec.resource_claims = tuple(PodResourceClaim(name=f"my-{each}", resource_claim_name=each) for each in names)
    return pod
