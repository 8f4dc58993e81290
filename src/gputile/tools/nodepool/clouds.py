"""Writes a cloud's commands and manifests for a node pool, with labels, taint and autoscaler hints.

An autoscaler must know which resources a new node will advertise (U8). This module computes these
resources with the agent's own code, so the hints are correct for every memory unit.
``docs/guides/nodepools.md`` names the source of each option and field.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gputile.api.well_known import GPU_MEMORY, UNSAFE_ACCESS_LABEL, WHOLE_GPU
from gputile.core.devices.inventory import model_labels, resources_for_mode
from gputile.tools.nodepool.pool import NodePool, joining_labels

_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"


@dataclass(frozen=True, slots=True)
class File:
    """A manifest of one or more YAML documents. The commands refer to the file by ``name``."""

    name: str
    documents: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A shell command. ``why`` is a sentence for the user about the command's purpose."""

    text: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class PoolSetup:
    """The setup of a pool: files and commands in order, notes, and values of gputile's chart."""

    steps: tuple[File | ShellCommand, ...]
    notes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def command(program: str, *options: str | tuple[str, str], why: str = "") -> ShellCommand:
    """Return a command with one option per line. The value of a pair (option, value) is quoted."""
    words = [
        option if isinstance(option, str) else f"{option[0]} {shlex.quote(option[1])}"
        for option in options
    ]
    return ShellCommand(" \\\n  ".join([program, *words]), why)


def words(values: Mapping[str, str]) -> str:
    """Return a mapping as command-line words ``key=value``, quoted for a shell if necessary."""
    return shlex.join(f"{key}={value}" for key, value in values.items())


def written(notes: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(note for note in notes if note)


GPU_OPERATOR = (
    ShellCommand(
        "kubectl create namespace gpu-operator --dry-run=client --output=yaml | kubectl apply "
        "--filename=-",
        "The Operator's pods access GPUs without booking them. gputile refuses such pods unless "
        f"their namespace has the label {UNSAFE_ACCESS_LABEL}=allowed.",
    ),
    ShellCommand(f"kubectl label namespace gpu-operator {UNSAFE_ACCESS_LABEL}=allowed --overwrite"),
    ShellCommand(
        "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia --force-update",
        "NVIDIA's GPU Operator installs driver and toolkit. Its device plugin is disabled: "
        "gputile's agent replaces it.",
    ),
    command(
        "helm install gpu-operator nvidia/gpu-operator",
        "--namespace gpu-operator --wait",
        "--set devicePlugin.enabled=false",
    ),
)
"""Source: NVIDIA, "Installing the NVIDIA GPU Operator", chart value ``devicePlugin.enabled``."""


TAINT_VALUE: Final = "present"  # the value that GKE uses
TAINT_EFFECT: Final = "NoSchedule"
_TAINT: Final = f"{WHOLE_GPU}={TAINT_VALUE}:{TAINT_EFFECT}"


def node_labels(pool: NodePool) -> dict[str, str]:
    """Return the labels with which the pool's nodes register (M11)."""
    return joining_labels(pool) | pool.labels


def template_labels(pool: NodePool) -> dict[str, str]:
    """Return all labels of the pool's nodes, including the labels that the agent sets."""
    return node_labels(pool) | model_labels(pool.devices)


def advertised(pool: NodePool) -> dict[str, int]:
    """Return the amounts of the resources that a node will advertise, without zeros."""
    return {
        n: c for n, c in resources_for_mode(pool.mode, pool.devices, pool.unit_mib).items() if c
    }


def sum_note(pool: NodePool) -> str | None:
    """Return a note if an autoscaler knows only the total memory of a node's GPUs, else None."""
    if not pool.mode.shared or pool.gpus.count == 1:
        return None
    total, each = advertised(pool)[GPU_MEMORY], pool.devices[0].mib // pool.unit_mib
    return (
        f"An autoscaler knows that a node has {total} units of {pool.gpu_memory_unit} in total. It "
        f"does not know that one GPU has {each}. Without autoscaling.nodeTypes it would add a "
        f"useless node for a pod that asks for more than {each} units on one GPU."
    )


def node_type_note(pool: NodePool) -> str:
    """Return the note with the pool's entry for ``autoscaling.nodeTypes`` of gputile's chart."""
    keys = {
        "eks": "karpenter.sh/nodepool"
        if pool.autoscaler == "karpenter"
        else "eks.amazonaws.com/nodegroup",
        "aks": "kubernetes.azure.com/agentpool",
        "gke": "cloud.google.com/gke-nodepool",
    }
    entry = {
        "label": f"{keys[pool.provider]}={pool.name}",
        "gpus": {"count": pool.gpus.count, "memory": pool.gpus.memory},
        "mode": pool.mode.value,
        "labels": template_labels(pool) | {_INSTANCE_TYPE: pool.instance_type},
    }
    return f"The pool's entry in autoscaling.nodeTypes of gputile's chart: [{json.dumps(entry)}]"


_ASG_TEMPLATE: Final = "k8s.io/cluster-autoscaler/node-template"
# eksctl chooses the accelerated image for an instance type with GPUs; Ubuntu's image has no driver.
_AMI_FAMILIES: Final = {"accelerated-image": "AmazonLinux2023", "gpu-operator": "Ubuntu2404"}


def _eks_setup(pool: NodePool) -> PoolSetup:
    operator = GPU_OPERATOR if pool.way == "gpu-operator" else ()
    values = ("agent.runtimeClassName=nvidia",) if operator else ()
    if pool.autoscaler == "karpenter":
        return _karpenter_setup(pool, operator, values)
    name = f"{pool.name}.eksctl.yaml"
    create = command(
        f"eksctl create nodegroup --config-file {name}",
        "--install-nvidia-plugin=false",
        why="gputile's agent is the device plugin; a second one would advertise the GPUs twice.",
    )
    return PoolSetup(
        (File(name, (_cluster_config(pool),)), create, *_tag_commands(pool), *operator),
        written((sum_note(pool),)),
        values,
    )


def _cluster_config(pool: NodePool) -> dict[str, Any]:
    group = {
        "name": pool.name,
        "amiFamily": _AMI_FAMILIES[pool.way],
        "instanceType": pool.instance_type,
        "minSize": pool.min_nodes,
        "maxSize": pool.max_nodes,
        "desiredCapacity": pool.min_nodes,
        "labels": node_labels(pool),
        "taints": [{"key": WHOLE_GPU, "value": TAINT_VALUE, "effect": TAINT_EFFECT}],
        "propagateASGTags": True,
    }
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {"name": pool.cluster, "region": pool.location},
        "managedNodeGroups": [group],
    }


def _autoscaler_tags(pool: NodePool) -> dict[str, str]:
    """Return the tags for resources and the agent's labels. eksctl does not write these tags."""
    joined = node_labels(pool)
    tags = {
        f"{_ASG_TEMPLATE}/resources/{name}": str(count) for name, count in advertised(pool).items()
    }
    return tags | {
        f"{_ASG_TEMPLATE}/label/{k}": v for k, v in template_labels(pool).items() if k not in joined
    }


def _tag_commands(pool: NodePool) -> tuple[ShellCommand, ...]:
    region, cluster, name = (shlex.quote(each) for each in (pool.location, pool.cluster, pool.name))
    find = (
        f"GROUP=$(aws eks describe-nodegroup --region {region} --cluster-name {cluster} "
        f"--nodegroup-name {name} \\\n"
        "  --query 'nodegroup.resources.autoScalingGroups[0].name' --output text)"
    )
    tags = [
        f'"ResourceId=$GROUP,ResourceType=auto-scaling-group,'
        f'Key={key},Value={value},PropagateAtLaunch=true"'
        for key, value in _autoscaler_tags(pool).items()
    ]
    why = (
        "The tags state what a new node will advertise, so that the autoscaler can add the first "
        "node of an empty group. eksctl only writes tags for labels."
    )
    tag = f"aws autoscaling create-or-update-tags --region {region} --tags \\\n  " + " \\\n  ".join(
        tags
    )
    return ShellCommand(find, why), ShellCommand(tag)


def _karpenter_setup(
    pool: NodePool, before: tuple[ShellCommand, ...], values: tuple[str, ...]
) -> PoolSetup:
    name = f"{pool.name}.karpenter.yaml"
    overlay = _overlay(pool)
    return PoolSetup(
        (
            *before,
            File(name, (_karpenter_pool(pool), *overlay)),
            ShellCommand(f"kubectl apply -f {name}"),
        ),
        written(
            (
                "NodeOverlay is alpha: install Karpenter with --set "
                "settings.featureGates.nodeOverlay=true. Without it, Karpenter does not know what "
                "the nodes will advertise, and adds no nodes."
                if overlay
                else None,
                f"The NodePool uses the EC2NodeClass {pool.name}, which must exist. Its image "
                f"determines the driver.",
                f"A NodePool has no minimum number of nodes, so minNodes {pool.min_nodes} has no "
                f"effect."
                if pool.min_nodes
                else None,
                f"The NodePool's limits allow the GPUs of {pool.max_nodes} nodes.",
                sum_note(pool),
            )
        ),
        values,
    )


def _karpenter_pool(pool: NodePool) -> dict[str, Any]:
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": pool.name},
        "spec": {
            "limits": {WHOLE_GPU: str(pool.max_nodes * pool.gpus.count)},
            "template": {
                "metadata": {"labels": node_labels(pool)},
                "spec": {
                    "nodeClassRef": {
                        "group": "karpenter.k8s.aws",
                        "kind": "EC2NodeClass",
                        "name": pool.name,
                    },
                    "requirements": [
                        {"key": _INSTANCE_TYPE, "operator": "In", "values": [pool.instance_type]}
                    ],
                    "taints": [{"key": WHOLE_GPU, "value": TAINT_VALUE, "effect": TAINT_EFFECT}],
                },
            },
        },
    }


def _overlay(pool: NodePool) -> tuple[dict[str, Any], ...]:
    """Return the NodeOverlay, or () if nodes advertise only whole GPUs, which Karpenter knows."""
    capacity = {name: str(count) for name, count in advertised(pool).items() if name != WHOLE_GPU}
    if not capacity:
        return ()
    requirements = [
        {"key": "karpenter.sh/nodepool", "operator": "In", "values": [pool.name]},
        {"key": _INSTANCE_TYPE, "operator": "In", "values": [pool.instance_type]},
    ]
    return (
        {
            "apiVersion": "karpenter.sh/v1alpha1",
            "kind": "NodeOverlay",
            "metadata": {"name": pool.name},
            "spec": {"requirements": requirements, "capacity": capacity},
        },
    )


_SCALE_SET_TEMPLATE: Final = "k8s.io_cluster-autoscaler_node-template_resources_"


def _aks_setup(pool: NodePool) -> PoolSetup:
    tags = {
        _SCALE_SET_TEMPLATE + name.replace("/", "_"): str(count)
        for name, count in advertised(pool).items()
    }
    add = command(
        "az aks nodepool add",
        ("--resource-group", pool.resource_group),
        ("--cluster-name", pool.cluster),
        ("--name", pool.name),
        ("--node-vm-size", pool.instance_type),
        *((("--gpu-driver", "none"),) if pool.way == "gpu-operator" else ()),
        f"--labels {words(node_labels(pool))}",
        ("--node-taints", _TAINT),
        f"--tags {words(tags)}",
        "--enable-cluster-autoscaler",
        f"--min-count {pool.min_nodes} --max-count {pool.max_nodes} --node-count {pool.min_nodes}",
    )
    operator = GPU_OPERATOR if pool.way == "gpu-operator" else ()
    return PoolSetup(
        (add, *operator),
        written((_aks_autoscaler_note(pool), sum_note(pool))),
        ("agent.runtimeClassName=nvidia",) if operator else (),
    )


def _aks_autoscaler_note(pool: NodePool) -> str | None:
    if pool.min_nodes or set(advertised(pool)) == {WHOLE_GPU}:
        return None
    return (
        "The open-source cluster autoscaler reads these tags from a scale set. AKS does not "
        "promise that its managed autoscaler reads them. If an empty pool does not grow, set "
        "minNodes to 1: the autoscaler then learns the resources from the existing node."
    )


_GKE_NO_PLUGIN: Final = "gke-no-default-nvidia-gpu-device-plugin"
_GKE_DRIVER: Final = ShellCommand(
    "kubectl apply -f "
    "https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master/"
    "nvidia-driver-installer/cos/daemonset-preloaded.yaml",
    "The driver, on Container-Optimized OS.",
)
_GKE_DRIVER_DIRECTORY: Final = "/home/kubernetes/bin/nvidia"


def _gke_setup(pool: NodePool) -> PoolSetup:
    own = pool.way == "own-driver"
    labels = node_labels(pool) | ({_GKE_NO_PLUGIN: "true"} if own else {})
    driver = "disabled" if own else "default"
    create = command(
        f"gcloud container node-pools create {pool.name}",
        ("--cluster", pool.cluster),
        ("--location", pool.location),
        ("--machine-type", pool.instance_type),
        (
            "--accelerator",
            f"type={pool.accelerator},count={pool.gpus.count},gpu-driver-version={driver}",
        ),
        ("--node-labels", ",".join(f"{key}={value}" for key, value in labels.items())),
        ("--node-taints", _TAINT),
        f"--enable-autoscaling --num-nodes {pool.min_nodes} --min-nodes {pool.min_nodes} "
        f"--max-nodes {pool.max_nodes}",
    )
    return PoolSetup(
        (create, _GKE_DRIVER) if own else (create,),
        written((_gke_plugin_note(own), _gke_autoscaler_note(pool), sum_note(pool))),
        (f"agent.driverDir={_GKE_DRIVER_DIRECTORY}",) if own else (),
    )


def _gke_plugin_note(own: bool) -> str:
    if own:
        return (
            f"With the label {_GKE_NO_PLUGIN}, neither GKE's device plugin nor the driver "
            "installer in its pod runs on the nodes."
        )
    return (
        "GKE's device plugin serves nvidia.com/gpu on these nodes. gputile's agent "
        "offers no GPUs there, so that no GPU is advertised twice. Other modes need own-driver."
    )


def _gke_autoscaler_note(pool: NodePool) -> str | None:
    lacking = sorted(set(advertised(pool)) - {WHOLE_GPU})
    if not lacking or pool.min_nodes:
        return None
    return (
        f"GKE's autoscaler takes no hints for {', '.join(lacking)}. It learns these resources from "
        "an existing node, so an empty pool does not grow. Set minNodes to 1."
    )


_PROVIDERS: Final[Mapping[str, Callable[[NodePool], PoolSetup]]] = {
    "eks": _eks_setup,
    "aks": _aks_setup,
    "gke": _gke_setup,
}


def setup_for(pool: NodePool) -> PoolSetup:
    found = _PROVIDERS[pool.provider](pool)
    return replace(found, notes=(*found.notes, node_type_note(pool)))
