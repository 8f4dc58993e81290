"""Karpenter with its provider kwok: it adds Node objects, and whoever tests plays what is on these machines."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.localcluster.binaries import MODULES
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gomodule import module_directory
from tests.localcluster.ports import free_ports
from tests.localcluster.processes import Process

POOL_LABEL: Final = "karpenter.sh/nodepool"
_CLASS: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_BATCH: Final = {"BATCH_IDLE_DURATION": "200ms", "BATCH_MAX_DURATION": "1s"}


def instance_type(name: str, resources: Mapping[str, int], price: float) -> dict[str, Any]:
    """Return a type of machine, with ``resources`` beside those of an ordinary one."""
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
    ]
    ordinary = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "1Ti", "pods": "100"}
    return {
        "name": name,
        "offerings": [{"Price": price, "Available": True, "Requirements": requirements}],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": ordinary | {resource: str(count) for resource, count in resources.items()},
    }


def node_pool(name: str, instance: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return a NodePool of GPU nodes of one type of machine, which Karpenter never removes."""
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance]}]
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    template = {"nodeClassRef": _CLASS, "requirements": requirements, "taints": taints, "expireAfter": "Never"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            "template": {"metadata": {"labels": dict(labels)}, "spec": template},
        },
    }


@contextmanager
def karpenter(plane: ControlPlane, program: Path, instance_types: list[dict[str, Any]]) -> Iterator[Process]:
    """Run Karpenter with these types of machines and no NodePool, for as long as the context lasts."""
    plane.kubectl("apply", "--server-side", *(f"--filename={definition}" for definition in _definitions()))
    plane.kubectl("wait", "--for=condition=Established", "--all", "crd", "--timeout=60s")
    types = plane.directory / "instance-types.json"
    types.write_text(json.dumps(instance_types))
    node_class = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": _CLASS["kind"], "metadata": {"name": "default"}}
    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(node_class))
    metrics, health = free_ports(2)
    environment = {
        **os.environ,
        **_BATCH,
        "KUBECONFIG": str(plane.kubeconfig()),
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "METRICS_PORT": str(metrics),
        "HEALTH_PROBE_PORT": str(health),
        "DISABLE_LEADER_ELECTION": "true",
        "SYSTEM_NAMESPACE": "kube-system",
    }
    with plane.start_process("karpenter", [program], environment=environment) as process:
        yield process


def remove_kinds(plane: ControlPlane) -> None:
    """Delete the CustomResourceDefinitions and all objects of their kinds: later tests compare what is served."""
    plane.kubectl("delete", "--ignore-not-found", *(f"--filename={definition}" for definition in _definitions()))


def _definitions() -> list[Path]:
    """Return the CustomResourceDefinitions, which are files of Karpenter's module."""
    directory = module_directory(MODULES / "karpenter", "sigs.k8s.io/karpenter")
    return sorted([*directory.glob("pkg/apis/crds/karpenter.sh_*.yaml"), *directory.glob("kwok/apis/crds/*.yaml")])
