"""Lists each resource, label, annotation, mode, policy, condition and reason that gputile uses.

The comment above a name states who defined the name, the kind of object that has it, and its
meaning. "ACK" is Alibaba Cloud's documentation of shared GPU scheduling. "gpushare" is
AliyunContainerService/gpushare-scheduler-extender. "NVIDIA" is the NVIDIA device plugin and
container toolkit. "gputile" is this project.

``docs/generator/reasons.toml`` describes the reasons of Events and conditions.
"""

from enum import StrEnum
from typing import Final, Literal, get_args

from gputile.api.wording import nearest

# Resources (what containers ask for and nodes advertise)
# ACK; in memory units
GPU_MEMORY: Final = "aliyun.com/gpu-mem"
# ACK; 100 per GPU
GPU_CORE: Final = "aliyun.com/gpu-core.percentage"
# gpushare; node: number of its shared GPUs. Pods do not request this resource.
GPU_COUNT: Final = "aliyun.com/gpu-count"
# ACK; whole GPUs with the best connections to each other
TOPOLOGY_GPU: Final = "aliyun.com/gpu"
# NVIDIA; whole GPUs
WHOLE_GPU: Final = "nvidia.com/gpu"
# Kubernetes 1.6 to 1.10; the same as nvidia.com/gpu
LEGACY_GPU: Final = "alpha.kubernetes.io/nvidia-gpu"
# NVIDIA; nvidia.com/mig-<profile>: MIG instances of that profile
MIG_PREFIX: Final = "nvidia.com/mig-"
# gputile; pods with claims request 0 of it, so that kube-scheduler calls the extender
CLAIMS_RESOURCE: Final = "gputile.io/claims"
# The resources that gputile schedules. kube-scheduler and the kubelet count MIG instances.
GPU_RESOURCES: Final = (GPU_MEMORY, GPU_CORE, TOPOLOGY_GPU, WHOLE_GPU, LEGACY_GPU)

# Labels
# ACK; node: the mode of its GPUs
MODE_LABEL: Final = "ack.node.gpu.schedule"
# ACK; node: how its GPUs are chosen, binpack, spread or packing
PLACEMENT_LABEL: Final = "ack.node.gpu.placement"
# ACK; pod: the number of GPUs that share its gpu-mem equally
GPU_COUNT_LABEL: Final = "aliyun.com/gpu-count"
# gputile; pod, label or annotation: the required GPU model, as in nodes' labels
GPU_MODEL: Final = "gputile.io/gpu-model"
# gputile; pod, label or annotation: "memory", "memory,compute" or "none"
ISOLATION: Final = "gputile.io/isolation"
# ACK; node: the model of all its GPUs
MODEL_LABEL: Final = "aliyun.accelerator/nvidia_name"
# ACK; node: the memory of each GPU, such as 15360MiB
NODE_GPU_MEMORY_LABEL: Final = "aliyun.accelerator/nvidia_mem"
# ACK; node: the number of its GPUs
NODE_GPU_COUNT_LABEL: Final = "aliyun.accelerator/nvidia_count"
# Kubernetes; pod of a DaemonSet: the generation of the DaemonSet's template
DAEMON_LABEL: Final = "pod-template-generation"
# Karpenter; node: its NodePool
KARPENTER_POOL_LABEL: Final = "karpenter.sh/nodepool"
# Karpenter; node: "true" once initialized
KARPENTER_INITIALIZED_LABEL: Final = "karpenter.sh/initialized"
# Kubernetes 1.6; node: the model of all its GPUs
LEGACY_MODEL_LABEL: Final = "alpha.kubernetes.io/nvidia-gpu-name"
# gputile; node: model.gputile.io/<model>: the number of such GPUs
MODEL_COUNT_PREFIX: Final = "model.gputile.io/"
# gputile; node in mode default: none, time-slicing or mig
SHARING_LABEL: Final = "gputile.io/sharing"
# gputile; node: "true" to offer its GPUs to claims instead of as extended resources
CLAIMS_LABEL: Final = "gputile.io/claims"
# gputile; node with time-slicing: number of replicas of each GPU
REPLICAS_LABEL: Final = "gputile.io/replicas"
# gputile; node: shared memory of each GPU, such as 14848MiB
SHARED_MEMORY_LABEL: Final = "gputile.io/shared-memory"
# gputile; node: its policy of GPU time, as a name or as ACK's number
TIME_POLICY_LABEL: Final = "gputile.io/gpu-time-policy"
# gputile; placeholder, a pod that requests a node from the autoscaler: "true"
PLACEHOLDER_LABEL: Final = "gputile.io/placeholder"
# gputile; namespace: "allowed" if its pods may reach GPUs without requesting them
UNSAFE_ACCESS_LABEL: Final = "gputile.io/unsafe-gpu-access"

# Gangs: scheduled together or not at all (M13)
# Kubernetes coscheduling; pod: the name of its gang
GANG_NAME_LABEL: Final = "pod-group.scheduling.sigs.k8s.io/name"
# Kubernetes coscheduling; pod: gang size
GANG_SIZE_LABEL: Final = "pod-group.scheduling.sigs.k8s.io/min-available"
# Kubernetes coscheduling; pod: the name of its PodGroup
POD_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
# gputile; scheduling gate of a pod whose gang has not been planned yet
GANG_GATE: Final = "gputile.io/gang"

# Annotations: gputile's own
# gputile; pod: its booked GPUs by container
ALLOCATION_ANNOTATION: Final = "gputile.io/allocation"
# gputile; pod: the memory unit of its gpu-mem, MiB
MEMORY_UNIT_ANNOTATION: Final = "gputile.io/memory-unit-mib"
# gputile; pod of a gang, or pod that preempts: its reserved GPUs
RESERVATION_ANNOTATION: Final = "gputile.io/hold"
# gputile; unbound pod: its change makes the API server refuse Bindings that were sent earlier
FENCE_ANNOTATION: Final = "gputile.io/fence"
# gputile; node: changed to make kube-scheduler retry pending pods
WAKE_ANNOTATION: Final = "gputile.io/wake"
# Kubernetes; pod: the cost of its deletion
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
# gputile; pod, mode mps: the percentage of a GPU's threads, 1 to 100
MPS_THREADS_ANNOTATION: Final = "gputile.io/mps-active-thread-percentage"
# gputile; node: "true" if the controller added the GPU taint
TAINTED_ANNOTATION: Final = "gputile.io/tainted"
# gputile; pod: its weight for GPU time, 1 to 1000
TIME_WEIGHT_ANNOTATION: Final = "gputile.io/gpu-weight"
# gputile; node: the Unix time in seconds until which no pods are scheduled to the node
HANDOVER_ANNOTATION: Final = "gputile.io/hand-over"
# gputile; placeholder: the label that the requested node will have
NODE_TYPE_ANNOTATION: Final = "gputile.io/node-type"
# gputile; node: its GPUs, written by the agent
INVENTORY_ANNOTATION: Final = "gputile.io/inventory"

# Claims (Dynamic Resource Allocation)
DRIVER: Final = "gpu.gputile.io"  # gputile; the name of its DRA driver
SHARE_CLASS: Final = "gputile-share"  # gputile; DeviceClass of GPUs that several claims share
GPU_CLASS: Final = "gputile-gpu"  # gputile; DeviceClass of whole GPUs

# Annotations that existing tools read: those of gpushare and ACK
# gpushare; pod on one GPU: the index of that GPU
GPUSHARE_INDEX: Final = "ALIYUN_COM_GPU_MEM_IDX"
# gpushare; pod on one GPU: the pod's memory units
GPUSHARE_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
# gpushare; pod on one GPU: the memory units of the whole GPU
GPUSHARE_DEVICE: Final = "ALIYUN_COM_GPU_MEM_DEV"
# gpushare; pod: "true" once the node has allocated the GPU
GPUSHARE_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
# gpushare; pod: when its GPU was chosen, as Unix time in nanoseconds
GPUSHARE_ASSUME_TIME: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
# ACK; pod on shared GPUs: its memory units by container and GPU
ACK_ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
# gpushare; the prefix of all gpushare annotations
GPUSHARE_PREFIX: Final = "ALIYUN_COM_GPU_MEM_"

# Annotations with a meaning to others
# Kubernetes 1.5; pod: its affinity, as JSON
LEGACY_AFFINITY_ANNOTATION: Final = "scheduler.alpha.kubernetes.io/affinity"
# kubelet; mirror pod of a static pod: the static pod's UID
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
# container runtimes; pod: devices to add, bypassing the kubelet
CDI_ANNOTATION_PREFIX: Final = "cdi.k8s.io/"
# NVIDIA's runtime and plugin for NRI; pod: devices to add
NVIDIA_CDI_ANNOTATION_PREFIX: Final = "nvidia.cdi.k8s.io/"
# NVIDIA's and NRI's plugins; pod: CDI devices to add
NRI_CDI_ANNOTATION_PREFIX: Final = "cdi-devices.noderesource.dev"
# NRI's device injector; pod: devices to add
NRI_DEVICE_ANNOTATION_PREFIX: Final = "devices.noderesource.dev"
# NRI's device injector; pod: directories to mount
NRI_MOUNT_ANNOTATION_PREFIX: Final = "mounts.noderesource.dev"
# NVIDIA's and NRI's plugins; former name
OLD_NRI_CDI_ANNOTATION_PREFIX: Final = "cdi-devices.nri.io"
# NRI's device injector; former name
OLD_NRI_DEVICE_ANNOTATION_PREFIX: Final = "devices.nri.io"
# NRI's device injector; former name
OLD_NRI_MOUNT_ANNOTATION_PREFIX: Final = "mounts.nri.io"
# a CDI injector by NRI; pod: CDI devices to add
NRI_CDI_INJECTOR_PREFIX: Final = "cdi.nri.io/"
# GKE's device injector; pod: devices to add
GKE_DEVICE_ANNOTATION_PREFIX: Final = "devices.gke.io/"
# CRI-O; pod: devices of the node to add
CRIO_DEVICE_ANNOTATION: Final = "devices.crio.io"
# CRI-O; former name
OLD_CRIO_DEVICE_ANNOTATION: Final = "io.kubernetes.cri-o.Devices"

# Prefix of gputile's node conditions
CONDITION_PREFIX: Final = "gputile.io/"

# The Leases of the active extender and the active controller
EXTENDER_LEASE: Final = "gputile-extender"
CONTROLLER_LEASE: Final = "gputile-controller"

DEFAULT_UNIT_MIB: Final = 1024  # U1
SMALLEST_UNIT_MIB: Final = 64  # U2
LARGEST_UNIT_MIB: Final = 16 * 1024 * 1024  # more than any GPU has


class Mode(StrEnum):
    """The modes of a node, as in the label ``ack.node.gpu.schedule`` (M2)."""

    EXCLUSIVE = "default"
    CGPU = "cgpu"
    CORE_MEM = "core_mem"
    SHARE = "share"
    MPS = "mps"
    TOPOLOGY = "topology"

    @property
    def shared(self) -> bool:
        """Whether pods request memory of a GPU instead of whole GPUs."""
        return self in (Mode.CGPU, Mode.CORE_MEM, Mode.SHARE, Mode.MPS)

    @property
    def isolates_memory(self) -> bool:
        """Whether a pod cannot use more memory than it requested (M4, M5, M7)."""
        return self in (Mode.CGPU, Mode.CORE_MEM, Mode.MPS)


MODES: Final = tuple(mode.value for mode in Mode)
Placement = Literal["binpack", "spread", "packing"]
PLACEMENTS: Final = get_args(Placement)
"""What ``ack.node.gpu.placement`` and the configuration's ``placement`` select (M9)."""


class GpuTimePolicy(StrEnum):
    """How the containers on a GPU share its time.

    These are the policies of ACK's cGPU (its parameter ``POLICY``), with gputile's names. Source:
    Alibaba Cloud, "Configure the computing power scheduling policy of cGPU".

    - ``average`` gives each container 1/maxPodsPerGpu of the time, even if it is alone.
    - ``preemptive`` gives equal shares to the containers that have work.
    - ``weighted`` divides the time among these containers by weight and priority.
    - ``fixed`` gives each container its percentage, and never more.
    - ``weak`` guarantees the percentages, and divides the rest by weight and priority.
    - ``native`` lets the driver decide.
    """

    AVERAGE = "average"
    PREEMPTIVE = "preemptive"
    WEIGHTED = "weighted"
    FIXED = "fixed"
    WEAK = "weak"
    NATIVE = "native"


POLICIES: Final = tuple(GpuTimePolicy)
"""All policies. The index of a policy is its number in ACK."""


class GpuTimePolicyError(ValueError):
    """No policy has this name or number. The error's text lists the valid policies."""


def parse_policy(named: str | int) -> GpuTimePolicy:
    """Return the policy with this name, or with this ACK number (an int or a digit).

    Raises GpuTimePolicyError if no policy has this name or number.
    """
    text = str(named)
    if text in POLICIES:
        return GpuTimePolicy(text)
    if len(text) == 1 and text in "012345":
        return POLICIES[int(text)]
    valid = ", ".join(f"{policy} ({number})" for number, policy in enumerate(POLICIES))
    raise GpuTimePolicyError(
        f"{text!r} is not a policy of GPU time; valid are {valid}{nearest(text, POLICIES)}"
    )


class EventReason(StrEnum):
    """The reason of an event about a pod."""

    GPU_ASSIGNED = "GPUAssigned"
    NO_GPU_FITS = "NoGPUFits"
    INVALID_GPU_REQUEST = "InvalidGPURequest"
    PREEMPTING = "Preempting"
    PREEMPTED = "Preempted"
    PREEMPTION_REFUSED = "PreemptionRefused"
    PREEMPTION_ENDED = "PreemptionEnded"
    GANG_PLANNED = "GangPlanned"
    GANG_INCOMPLETE = "GangIncomplete"
    GANG_WAITING = "GangWaiting"
    GANG_PREEMPTING = "GangPreempting"
    GANG_BEHIND = "GangBehind"
    GANG_TOO_LARGE = "GangTooLarge"
    NODE_REQUESTED = "NodeRequested"
    NODE_NOT_ADDED = "NodeNotAdded"
    NO_NODE_TYPE_FITS = "NoNodeTypeFits"
    ALLOCATION_RECORDED = "AllocationRecorded"
    GPU_BOOKING_CORRECTED = "GpuBookingCorrected"
    GPU_FORGOTTEN = "GpuForgotten"
    GPU_MISSING = "GpuMissing"
    CLAIM_NOT_PREPARED = "ClaimNotPrepared"


class ConditionType(StrEnum):
    """The type of a node condition. The status "True" means that the node has the problem."""

    DRIVER_PROBLEM = "gputile.io/DriverProblem"
    CARD_PROBLEM = "gputile.io/CardProblem"
    MODE_PENDING = "gputile.io/ModePending"
    MEMORY_UNIT_REFUSED = "gputile.io/MemoryUnitRefused"
    MIG_PROBLEM = "gputile.io/MigProblem"
    MPS_PROBLEM = "gputile.io/MpsProblem"
    OTHER_DEVICE_PLUGIN = "gputile.io/OtherDevicePlugin"
    PLACEMENT_REFUSED = "gputile.io/PlacementRefused"
    TIME_POLICY_REFUSED = "gputile.io/TimePolicyRefused"
    CLAIMS_REFUSED = "gputile.io/ClaimsRefused"
    AGENT_SILENT = "gputile.io/AgentSilent"


class ConditionReason(StrEnum):
    """The reason of a condition of a node."""

    DRIVER_MISSING = "DriverMissing"
    DRIVER_NOT_LOADED = "DriverNotLoaded"
    DRIVER_VERSION_MISMATCH = "DriverVersionMismatch"
    DRIVER_NO_PERMISSION = "DriverNoPermission"
    DRIVER_ERROR = "DriverError"
    STARTING = "Starting"
    DRIVER_ANSWERS = "DriverAnswers"
    CARD_UNHEALTHY = "CardUnhealthy"
    CARD_LOST = "CardLost"
    CARD_NEEDS_RESET = "CardNeedsReset"
    CARD_WITHOUT_MEMORY = "CardWithoutMemory"
    CARDS_HEALTHY = "CardsHealthy"
    INVALID_LABEL = "InvalidLabel"
    FEATURE_DISABLED = "FeatureDisabled"
    PODS_ON_NODE = "PodsOnNode"
    CHECKPOINT_NOT_WRITTEN = "CheckpointNotWritten"
    CLOSING = "Closing"
    MODE_IN_FORCE = "ModeInForce"
    TOO_MANY_DEVICES = "TooManyDevices"
    UNIT_IN_FORCE = "UnitInForce"
    NO_MIG_INSTANCES = "NoMigInstances"
    MIG_NOT_OFFERED = "MigNotOffered"
    MIG_AS_ASKED = "MigAsAsked"
    CONTROL_DAEMON_MISSING = "ControlDaemonMissing"
    NOT_NEEDED_OR_RUNNING = "NotNeededOrRunning"
    OTHER_PLUGIN_FOUND = "OtherPluginFound"
    NONE_FOUND = "NoneFound"
    VALID = "Valid"
    CLAIMS_UNSUPPORTED = "ClaimsUnsupported"
    CLAIMS_AS_ASKED = "ClaimsAsAsked"
    NO_AGENT = "NoAgent"
    INVENTORY_UNREADABLE = "InventoryUnreadable"
    NOTHING_OFFERED = "NothingOffered"
    AGENT_HEARD = "AgentHeard"
