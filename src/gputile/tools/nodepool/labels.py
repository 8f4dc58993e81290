"""Tells which labels a description's nodes have, by which field, and which nobody can tell from it.

Sources: Kubernetes, "Well-Known Labels, Annotations and Taints"; eksctl and EKS, managed node groups; Karpenter,
"NodePools"; AKS, "Use labels", reserved system labels; GKE, "Run GPUs in GKE Standard node pools" and the labels
of its node pools. ``docs/guides/nodepools.md`` names them one by one.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from gputile.api.affinity import NodeSelectorRequirement
from gputile.api.well_known import (
    LEGACY_MODEL_LABEL,
    MODE_LABEL,
    MODEL_COUNT_PREFIX,
    MODEL_LABEL,
    NODE_GPU_COUNT_LABEL,
    NODE_GPU_MEMORY_LABEL,
    PLACEMENT_LABEL,
)
from gputile.core.devices.inventory import model_label_value, model_labels
from gputile.tools.nodepool.pool import NodePool

HOSTNAME: Final = "kubernetes.io/hostname"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
NO_PLUGIN: Final = "gke-no-default-nvidia-gpu-device-plugin"
ZONES: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_ARCHITECTURES: Final = ("kubernetes.io/arch", "beta.kubernetes.io/arch")
_INSTANCE_TYPES: Final = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type")
_REGIONS: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_SYSTEMS: Final = ("kubernetes.io/os", "beta.kubernetes.io/os")
TO_A_KUBELET: Final = (*_SYSTEMS, *_ARCHITECTURES, *_INSTANCE_TYPES, *_REGIONS, *ZONES)
"""The labels of kubernetes.io outside its own two domains that a kubelet takes, but for the host's name."""
_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_MODEL_LABELS: Final = (MODEL_LABEL, LEGACY_MODEL_LABEL)

# Who else labels nodes, by the domains of the keys: Kubernetes and NVIDIA's discovery, and each provider its own.
_DOMAINS: Final = ("kubernetes.io", "k8s.io", "nvidia.com")
_PROVIDERS_DOMAINS: Final[Mapping[str, tuple[str, ...]]] = {
    "eks": ("amazonaws.com", "eksctl.io", "k8s.aws", "karpenter.sh"),
    "aks": ("azure.com",),
    "gke": ("cloud.google.com", "gke.io"),
}
_WITHOUT_DOMAIN: Final[Mapping[str, tuple[str, ...]]] = {"aks": ("accelerator", "storageprofile", "storagetier")}
_GOOGLES_REGION: Final = re.compile(r"[a-z]+-[a-z]+[0-9]+", re.ASCII)


class Told(NamedTuple):
    """The value of a label, None for a label that no node has, and the field of the description that decides it."""

    value: str | None
    field: str


def joining(pool: NodePool) -> dict[str, Told]:
    """Return the labels of gputile's that the nodes join with (M11)."""
    labels = {MODE_LABEL: Told(pool.mode.value, "mode")}
    if pool.placement is not None:
        labels[PLACEMENT_LABEL] = Told(pool.placement, "placement")
    if pool.gpus.model:
        # A kubelet does not take labels of kubernetes.io that it does not know; the agent sets that one.
        labels |= {key: told for key, told in _gpus(pool).items() if key != LEGACY_MODEL_LABEL}
    return labels


def agents(pool: NodePool) -> dict[str, Told]:
    """Return the labels that the agent sets."""
    labels = _gpus(pool)
    model = model_label_value(pool.gpus.model)
    return labels | ({f"{MODEL_COUNT_PREFIX}{model}": Told(str(pool.gpus.count), "gpus.model")} if model else {})


def told(pool: NodePool) -> dict[str, Told]:
    """Return what the description says of labels, those of its own field ``labels`` left out."""
    region = region_of(pool)
    return {
        **dict.fromkeys(_SYSTEMS, Told("linux", "provider")),
        **dict.fromkeys(_CONTROL_PLANE, Told(None, "provider")),
        **dict.fromkeys(_INSTANCE_TYPES, Told(pool.instance_type, "instanceType")),
        **(dict.fromkeys(_REGIONS, Told(region, "location")) if region else {}),
        **_OF_PROVIDER[pool.provider](pool),
        **agents(pool),
        **joining(pool),
    }


def region_of(pool: NodePool) -> str:
    """Return the region of the nodes, "" where the description does not tell it: on AKS it is the cluster's."""
    if pool.provider == "gke":
        found = _GOOGLES_REGION.match(pool.location)
        return found[0] if found else ""
    return pool.location if pool.provider == "eks" else ""


def may_hold(pool: NodePool, requirement: NodeSelectorRequirement) -> bool:
    """Return whether a node of the pool may meet a requirement on a label of which the description tells nothing."""
    if not _untold(pool, requirement.key):
        return False
    if requirement.key in ZONES and requirement.operator == "In":
        return any(_in_region(zone, region_of(pool)) for zone in requirement.values)
    return True


def _in_region(zone: str, region: str) -> bool:
    """Return whether a zone's name is its region's and more; eu-west-10 is no zone of eu-west-1."""
    return not region or (zone.startswith(region) and not zone[len(region) :][:1].isdigit())


def _untold(pool: NodePool, key: str) -> bool:
    if key == HOSTNAME or key in pool.labels or key in told(pool):
        return False  # a new node has a name of its own
    if key in _MODEL_LABELS or key.startswith(MODEL_COUNT_PREFIX):
        return not model_label_value(pool.gpus.model)
    domain, qualified, _ = key.partition("/")
    if not qualified:
        return key in _WITHOUT_DOMAIN.get(pool.provider, ())
    return within(domain, (*_DOMAINS, *_PROVIDERS_DOMAINS[pool.provider]))


def within(domain: str, domains: tuple[str, ...]) -> bool:
    """Return whether a domain is one of ``domains``, or below one."""
    return any(domain == each or domain.endswith(f".{each}") for each in domains)


def _gpus(pool: NodePool) -> dict[str, Told]:
    fields = {NODE_GPU_COUNT_LABEL: "gpus.count", NODE_GPU_MEMORY_LABEL: "gpus.memory"}
    return {key: Told(value, fields.get(key, "gpus.model")) for key, value in model_labels(pool.devices).items()}


def _eks(pool: NodePool) -> dict[str, Told]:
    group = None if pool.autoscaler == "karpenter" else pool.name
    return {
        "eks.amazonaws.com/nodegroup": Told(group, "name"),
        "alpha.eksctl.io/nodegroup-name": Told(group, "name"),
        "alpha.eksctl.io/cluster-name": Told(group and pool.cluster, "cluster"),
        "karpenter.sh/nodepool": Told(None if group else pool.name, "name"),
    }


def _aks(pool: NodePool) -> dict[str, Told]:
    return {"agentpool": Told(pool.name, "name"), "kubernetes.azure.com/agentpool": Told(pool.name, "name")}


def _gke(pool: NodePool) -> dict[str, Told]:
    return {
        "cloud.google.com/gke-nodepool": Told(pool.name, "name"),
        "cloud.google.com/gke-accelerator": Told(pool.accelerator, "accelerator"),
        NO_PLUGIN: Told("true" if pool.way == "own-driver" else None, "way"),
    }


_OF_PROVIDER: Final[Mapping[str, Callable[[NodePool], dict[str, Told]]]] = {"eks": _eks, "aks": _aks, "gke": _gke}
