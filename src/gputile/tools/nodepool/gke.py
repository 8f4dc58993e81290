"""Plans node pools of Google GKE, with GKE's driver or one's own.

Sources: gcloud container node-pools create (``--accelerator``, ``gpu-driver-version``, ``--node-labels``,
``--node-taints``); GKE, "Manage the GPU stack with the NVIDIA GPU Operator" (the label
``gke-no-default-nvidia-gpu-device-plugin``); GoogleCloudPlatform/container-engine-accelerators (the installer).
"""

from typing import Final

from gputile.api.well_known import WHOLE_GPU
from gputile.tools.nodepool.hints import advertised, node_labels, sum_note, taint
from gputile.tools.nodepool.labels import NO_PLUGIN
from gputile.tools.nodepool.pool import NodePool
from gputile.tools.nodepool.setup import PoolSetup, ShellCommand, command, pairs, written

INSTALLER: Final = (
    "https://raw.githubusercontent.com/GoogleCloudPlatform/container-engine-accelerators/master/"
    "nvidia-driver-installer/cos/daemonset-preloaded.yaml"
)
DRIVER_DIRECTORY: Final = "/home/kubernetes/bin/nvidia"


def setup(pool: NodePool) -> PoolSetup:
    """Return the node pool."""
    own = pool.way == "own-driver"
    labels = node_labels(pool) | ({NO_PLUGIN: "true"} if own else {})
    driver = "disabled" if own else "default"
    create = command(
        f"gcloud container node-pools create {pool.name}",
        ("--cluster", pool.cluster),
        ("--location", pool.location),
        ("--machine-type", pool.instance_type),
        ("--accelerator", f"type={pool.accelerator},count={pool.gpus.count},gpu-driver-version={driver}"),
        ("--node-labels", pairs(labels)),
        ("--node-taints", taint()),
        f"--enable-autoscaling --num-nodes {pool.min_nodes} --min-nodes {pool.min_nodes} --max-nodes {pool.max_nodes}",
    )
    install = ShellCommand(f"kubectl apply -f {INSTALLER}", "The driver, on Container-Optimized OS.") if own else None
    return PoolSetup(
        (create, *([install] if install else [])),
        written((_plugin_note(own), _autoscaler_note(pool), sum_note(pool))),
        (f"agent.driverDir={DRIVER_DIRECTORY}",) if own else (),
    )


def _plugin_note(own: bool) -> str:
    if own:
        return f"The label {NO_PLUGIN} keeps GKE's device plugin, and the driver installer in its pod, off the nodes."
    return (
        "GKE's device plugin serves nvidia.com/gpu on these nodes, and gputile's agent stands back: nothing is "
        "advertised twice. For the other modes use own-driver."
    )


def _autoscaler_note(pool: NodePool) -> str | None:
    lacking = sorted(set(advertised(pool)) - {WHOLE_GPU})
    if not lacking or pool.min_nodes:
        return None
    return (
        f"GKE's autoscaler has no hint for {', '.join(lacking)}: it learns from a node that is there, so that a pool "
        "of no nodes does not grow. Set minNodes to 1."
    )
