"""Plans node groups of Amazon EKS, with the cluster autoscaler's tags or with Karpenter.

Sources: eksctl User Guide, "GPU Support" (the accelerated image is chosen by the instance type;
``--install-nvidia-plugin=false``) and "Auto Scaling" (``propagateASGTags`` writes labels and taints as tags);
cluster-autoscaler, cloudprovider/aws/README.md (``k8s.io/cluster-autoscaler/node-template/resources/<name>``).
"""

import shlex
from typing import Any, Final

from gputile.api.well_known import WHOLE_GPU
from gputile.tools.nodepool import karpenter
from gputile.tools.nodepool.hints import TAINT_EFFECT, TAINT_VALUE, advertised, node_labels, sum_note, template_labels
from gputile.tools.nodepool.pool import NodePool
from gputile.tools.nodepool.setup import GPU_OPERATOR, File, PoolSetup, ShellCommand, command, written

TEMPLATE: Final = "k8s.io/cluster-autoscaler/node-template"
# eksctl chooses the accelerated variant for an instance type with GPUs; Ubuntu's image has no driver.
AMI_FAMILIES: Final = {"accelerated-image": "AmazonLinux2023", "gpu-operator": "Ubuntu2404"}


def setup(pool: NodePool) -> PoolSetup:
    """Return the node group of a pool."""
    operator = GPU_OPERATOR if pool.way == "gpu-operator" else ()
    values = ("agent.runtimeClassName=nvidia",) if operator else ()
    if pool.autoscaler == "karpenter":
        return karpenter.setup(pool, operator, values)
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
        "amiFamily": AMI_FAMILIES[pool.way],
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


def autoscaler_tags(pool: NodePool) -> dict[str, str]:
    """Return the tags that eksctl does not write: what a node advertises, and the labels that its agent sets."""
    joined = node_labels(pool)
    tags = {f"{TEMPLATE}/resources/{name}": str(count) for name, count in advertised(pool).items()}
    return tags | {f"{TEMPLATE}/label/{k}": v for k, v in template_labels(pool).items() if k not in joined}


def _tag_commands(pool: NodePool) -> tuple[ShellCommand, ...]:
    region, cluster, name = (shlex.quote(each) for each in (pool.location, pool.cluster, pool.name))
    find = (
        f"GROUP=$(aws eks describe-nodegroup --region {region} --cluster-name {cluster} --nodegroup-name {name} \\\n"
        "  --query 'nodegroup.resources.autoScalingGroups[0].name' --output text)"
    )
    tags = [
        f'"ResourceId=$GROUP,ResourceType=auto-scaling-group,Key={key},Value={value},PropagateAtLaunch=true"'
        for key, value in autoscaler_tags(pool).items()
    ]
    why = (
        "What a new node will advertise, so that a group of no nodes can grow: eksctl tags the group with labels only."
    )
    tag = f"aws autoscaling create-or-update-tags --region {region} --tags \\\n  " + " \\\n  ".join(tags)
    return ShellCommand(find, why), ShellCommand(tag)
