"""The statements of the published documents, one by one, and the tests that show each of them.

``.ci/run`` ends with the table of them, which ``python -m tests.walk`` prints. The documents are not in this
repository: each statement is in words of our own, beside the number of its document and a literal that stands there.

Documents: 001 the unit of GPU memory (000 is the same in another language), 002 GPUs on Kubernetes, 003 the modes of a
node, 004 GPUs in early Kubernetes.
"""

from dataclasses import dataclass
from enum import StrEnum


class Here(StrEnum):
    """What becomes of a statement here."""

    HOLDS = "as it says"
    LIFTED = "limit lifted"


@dataclass(frozen=True, slots=True)
class Statement:
    """What a document says, and a literal of it; ``shown`` are the tests, as FILE::FUNCTION below ``tests``."""

    document: str
    literal: str
    text: str
    shown: tuple[str, ...]
    here: Here = Here.HOLDS


def _says(document: str, literal: str, text: str, *shown: str) -> Statement:
    return Statement(document, literal, text, shown)


def _lifted(document: str, literal: str, text: str, *shown: str) -> Statement:
    return Statement(document, literal, text, shown, Here.LIFTED)


WALK, FLOWS, CHANGES = "e2e/test_walk.py", "e2e/test_flows.py", "e2e/pods/test_changes.py"
MODES, KINDS, EXTENDER = "e2e/test_node_modes.py", "e2e/test_node_kinds.py", "e2e/test_extender.py"
WEBHOOK, NODEPOOL = "e2e/test_webhook.py", "unit/tools/nodepool/test_nodepool.py"
PAGES = f"{FLOWS}::test_every_command_of_the_page_does_what_the_page_shows"
FORMS = f"{WEBHOOK}::test_300_pods_of_every_form_through_kubectl"
EACH_MODE = f"{MODES}::test_each_mode_offers_its_own_resources"
TABLES = f"{MODES}::test_the_tables_of_binpack_and_spread"
NEW_UNIT = f"{MODES}::test_the_unit_changes_under_running_pods"
EVERY_WAY = f"{NODEPOOL}::test_every_way_is_what_it_was"
DOCUMENTS_004 = f"{WALK}::test_pods_of_early_kubernetes_run"

STATEMENTS = (
    _says("001", "1 GiB", "one unit of GPU memory is 1 GiB by default", EACH_MODE),
    _says("001", "128 MiB", "the unit can be made 128 MiB", NEW_UNIT),
    _says("001", "aliyun.com/gpu-mem", "a pod with this limit asks for GPU memory",
          "e2e/test_node.py::test_a_pod_gets_the_gpu_that_was_booked"),
    _lifted("001", "scheduler ledger may become disordered", "GPU pods have to go before the unit changes", NEW_UNIT),
    _lifted("001", "ack.node.gpu.schedule=share", "only nodes in mode share can have another unit", NEW_UNIT),
    _says("001", "at most 16 pods", "where memory is isolated a GPU takes 16 pods",
          f"{EXTENDER}::test_the_seventeenth_pod_of_an_isolated_gpu_waits"),
    _lifted("001", "no new node is added", "with small units no node is added for a pod that waits",
            f"{NODEPOOL}::test_the_autoscaler_is_told_what_the_agent_will_advertise",
            "e2e/test_autoscaling.py::test_a_pod_that_fits_a_node_and_none_of_its_gpus_brings_a_node"),
    _lifted("001", "after the scheduler is restarted", "a new unit takes effect when the scheduler has been restarted",
            f"{CHANGES}::test_a_new_unit_and_its_rollback_restart_nothing"),
    _says("001", "gpuMemoryUnit: 128MiB", "a parameter of the installation sets the unit",
          "chart/test_render.py::test_the_configuration_has_every_field_and_the_values_under_the_documents_names"),
    _says("001", "from Deploying to Deployed", "the status is Deploying until everything is deployed",
          f"{CHANGES}::test_running_pods_outlive_gputile_and_are_known_again"),
    _lifted("001", "click Uninstall", "to change the parameter, uninstall and deploy again", PAGES),
    _says("001", "16 * 128 MiB = 2 GiB", "16 units of 128 MiB are 2 GiB; the StatefulSet asks for them",
          NEW_UNIT,
          "e2e/pods/test_install.py::test_the_documents_statefulset_runs_unmodified_with_its_share"),
    _says("002", "デバイス プラグイン", "a device plugin registers with the kubelet and offers the GPUs",
          EACH_MODE),
    _says("002", "API サーバー", "the kubelet tells the API server, and the scheduler schedules by it",
          "e2e/test_node.py::test_the_node_says_what_its_gpus_are"),
    _says("002", "2 つの値は等しくなければなりません", "GPUs are limits; a request equals its limit", FORMS),
    _says("002", "整数", "GPUs are whole numbers", FORMS),
    _says("002", "1 つの Nvidia GPU", "a pod that asks for a GPU gets one that nobody has",
          DOCUMENTS_004),
    _says("002", "オーバーサブスクライブ", "GPUs can be shared by time-slicing",
          f"{KINDS}::test_replicas_of_whole_gpus_are_for_one_trust_group"),
    _says("002", "2 つのメカニズム", "and by MIG", f"{KINDS}::test_mig_instances_and_the_whole_gpu_beside_them"),
    _lifted("002", "均等に分割", "time is shared evenly only, without priorities",
            "stateful/test_arbiter.py::test_shares_converge_to_the_weights"),
    _lifted("002", "ワークロードが不足する", "a workload may starve",
            "unit/node/arbiter/test_timeslice_scheduler.py::test_a_low_priority_does_not_starve"),
    _lifted("002", "メモリの分離はありません", "memory is not isolated on a GPU",
            "integration/agent/test_isolation.py::test_a_container_of_an_isolated_mode",
            "native/test_families.py::test_counts_against_the_limit"),
    _says("002", "相互に信頼する", "without isolation only those who trust each other share a GPU",
          f"{KINDS}::test_replicas_of_whole_gpus_are_for_one_trust_group"),
    _says("002", "EC2", "EKS: node groups with GPUs, in two ways", EVERY_WAY),
    _says("002", "Azure", "AKS: node pools in three ways", EVERY_WAY),
    _says("002", "GKE", "GKE: node pools in two ways", EVERY_WAY),
    _lifted("002", "他のプロバイダーはそうしません", "only GKE taints GPU nodes by itself",
            "e2e/test_controller.py::test_gpu_nodes_are_tainted_and_silent_agents_told_of"),
    _lifted("002", "nvidia.com/gpu", "pods have to tolerate the taint", FORMS),
    _says("003", "獨佔調度預設", "without a label a node gives whole GPUs",
          EACH_MODE),
    _says("003", "cgpu:算力共用", "cgpu isolates memory, and compute is shared",
          "integration/agent/test_isolation.py::test_a_container_of_an_isolated_mode"),
    _says("003", "core_mem:算力與", "core_mem isolates memory and compute",
          "integration/arbiter/test_sharing.py::test_30_and_60_percent"),
    _says("003", "share:共用算力", "share isolates nothing", PAGES),
    _says("003", "mps:算力共用", "mps isolates memory through NVIDIA MPS",
          f"{KINDS}::test_mps_through_daemons_that_outlive_the_agent"),
    _says("003", "MPS Control Daemon", "mps needs the control daemon",
          f"{KINDS}::test_mps_through_daemons_that_outlive_the_agent"),
    _says("003", "ack.node.gpu.placement: binpack", "binpack fills one GPU before the next",
          TABLES),
    _says("003", "ack.node.gpu.placement: spread", "spread uses different GPUs",
          TABLES),
    _says("003", "15/15", "the table of binpack, 24/60 (40%)", TABLES),
    _says("003", "12/60 (20%)", "the table of spread, 12/60 (20%)", TABLES),
    _says("003", "拓撲感知調度", "topology gives the best-connected set",
          f"{EXTENDER}::test_topology_gives_the_best_connected_set_and_nothing_else"),
    _says("003", "aliyun.com/gpu: \"2\"", "a node in mode topology shows aliyun.com/gpu",
          EACH_MODE),
    _says("003", "不再支援非拓撲感知GPU資源的調度", "other GPU pods do not go to such a node",
          f"{EXTENDER}::test_topology_gives_the_best_connected_set_and_nothing_else"),
    _says("003", "自動置為", "one mode a node: the resources of the others are 0",
          EACH_MODE),
    _says("003", "ack.node.gpu.schedule=default --overwrite", "the label's value default restores whole GPUs",
          EACH_MODE),
    _lifted("003", "僅刪除標籤無法恢複獨佔調度", "removing the label alone restores nothing",
            EACH_MODE),
    _says("003", "GPU拓撲感知調度", "gangs, sharing and topology are chosen at installation",
          "chart/test_render.py::test_components_are_enabled_separately"),
    _says("003", "節點標籤", "a node pool's labels set the mode of its nodes",
          EVERY_WAY),
    _says("003", "aliyun.com/gpu-mem: \"60\"", "a node in mode cgpu, share or mps shows aliyun.com/gpu-mem",
          EACH_MODE, PAGES),
    _says("003", "aliyun.com/gpu-core.percentage:\"80\"", "a node in mode core_mem shows compute and memory",
          EACH_MODE),
    _says("003", "kubectl inspect cgpu", "kubectl inspect cgpu shows who has what",
          TABLES),
    _says("003", "kubectl get nodes -L aliyun.accelerator/nvidia_name", "a column shows each node's model",
          f"{WALK}::test_the_labels_of_the_model"),
    _says("003", "memory.total", "the labels are what nvidia-smi prints", f"{WALK}::test_the_labels_of_the_model"),
    _says("003", "nodeSelector:", "the Job that selects a model runs there", f"{WALK}::test_the_jobs_of_a_model"),
    _says("003", "operator: NotIn", "the Job that excludes a model does not", f"{WALK}::test_the_jobs_of_a_model"),
    _says("004", "NVIDIA 驱动", "without a driver a node shows no GPU",
          "integration/agent/test_resting.py::test_a_gpu_without_a_driver_is_told"),
    _lifted("004", "Accelerators=true", "a feature gate has to be on", DOCUMENTS_004),
    _lifted("004", "docker", "the container runtime has to be Docker", DOCUMENTS_004),
    _says("004", "requesting 3 GPUs", "two containers with 2 and 3 GPUs under the old name", DOCUMENTS_004),
    _lifted("004", "--node-labels", "a kubelet's options label the node with its model",
            f"{WALK}::test_the_labels_of_the_model"),
    _says("004", "scheduler.alpha.kubernetes.io/affinity", "an annotation chooses the model", DOCUMENTS_004),
    _says("004", "Tesla P100", "models are named with blanks", DOCUMENTS_004),
    _lifted("004", "CUDA 库", "CUDA libraries are to be installed on the node and made readable",
            "integration/agent/test_isolation.py::test_a_container_of_an_isolated_mode"),
    _says("004", "/usr/lib/nvidia-375", "a pod mounts the libraries by hostPath", DOCUMENTS_004),
)  # fmt: skip
