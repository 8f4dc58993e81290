"""Names every event and condition that gputile writes, what it means and what people should do.

``docs/reference/events.md`` is generated from this table. Names are Kubernetes' CamelCase reasons.
"""

from enum import StrEnum
from typing import Final, Literal, Self

EventKind = Literal["Normal", "Warning"]
_NORMAL: Final[tuple[EventKind, ...]] = ("Normal",)
_WARNING: Final[tuple[EventKind, ...]] = ("Warning",)
_BOTH: Final[tuple[EventKind, ...]] = ("Normal", "Warning")


class EventReason(StrEnum):
    """The reason of an event about a pod: its types, the components that record it, its meaning, and the remedy."""

    kinds: tuple[EventKind, ...]
    components: str
    meaning: str
    remedy: str

    def __new__(cls, name: str, kinds: tuple[EventKind, ...], components: str, meaning: str, remedy: str) -> Self:
        """Make a reason that is its name."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.kinds, made.components, made.meaning, made.remedy = kinds, components, meaning, remedy
        return made

    GPU_ASSIGNED = (
        "GPUAssigned",
        _NORMAL,
        "extender",
        "the pod was bound; the message names its GPUs and the node",
        "nothing",
    )
    NO_GPU_FITS = (
        "NoGPUFits",
        _WARNING,
        "extender",
        "no node fits the pod; the message says why, node by node. There is one such event for each pod, "
        "which says the latest reason",
        "`gputile explain POD` says what would have to change",
    )
    INVALID_GPU_REQUEST = (
        "InvalidGPURequest",
        _WARNING,
        "extender, controller",
        "what the pod or the gang asks for breaks a rule; the message names the field, the rule and the remedy",
        "correct the manifest, create the pod anew",
    )
    PREEMPTING = (
        "Preempting",
        _NORMAL,
        "extender",
        "GPUs are kept for the pod; the message names them, and the pods that have to leave",
        "nothing",
    )
    PREEMPTED = (
        "Preempted",
        _NORMAL,
        "extender, controller",
        "the pod was evicted for a pod or a gang of higher priority, which the message names",
        "nothing; its controller replaces it",
    )
    PREEMPTION_REFUSED = (
        "PreemptionRefused",
        _WARNING,
        "extender, controller",
        "the eviction of a pod was refused, by a PodDisruptionBudget or for want of a right",
        "read the message; it is tried again",
    )
    PREEMPTION_ENDED = (
        "PreemptionEnded",
        _WARNING,
        "extender, controller",
        "no GPUs are kept for the pod or the gang any more; the message says why",
        "nothing; if its time was over, see which pod does not go",
    )
    GANG_PLANNED = "GangPlanned", _NORMAL, "controller", "GPUs are reserved for all pods of the gang", "nothing"
    GANG_INCOMPLETE = (
        "GangIncomplete",
        _BOTH,
        "controller",
        "fewer pods of the gang exist than start together (Normal), or nobody says how many these are (Warning)",
        "create the missing pods, or the PodGroup",
    )
    GANG_WAITING = (
        "GangWaiting",
        _WARNING,
        "controller",
        "the gang does not fit now; the message says for how many pods there is capacity, and what is missing",
        "wait, add nodes, or ask for less",
    )
    GANG_PREEMPTING = (
        "GangPreempting",
        _NORMAL,
        "controller",
        "GPUs are kept for the gang until pods of lower priority have left them; the message names these",
        "nothing",
    )
    GANG_BEHIND = (
        "GangBehind",
        _WARNING,
        "controller",
        "the gang waits behind another one that has waited too long to be passed again",
        "wait",
    )
    GANG_TOO_LARGE = (
        "GangTooLarge",
        _WARNING,
        "controller",
        "the gang would not fit on the empty cluster either",
        "add nodes, or ask for less",
    )
    NODE_REQUESTED = (
        "NodeRequested",
        _NORMAL,
        "controller",
        "no GPU has room for the pod, and the autoscaler is asked for a node; the message names its label",
        "wait for the node",
    )
    NODE_NOT_ADDED = (
        "NodeNotAdded",
        _WARNING,
        "controller",
        "no node of use came, though one was asked for or the autoscaler sees the pod itself, or others come first",
        "look at the message, the autoscaler's log and the pool's limits; it is asked for again",
    )
    NO_NODE_TYPE_FITS = (
        "NoNodeTypeFits",
        _WARNING,
        "controller",
        "no GPU has room for the pod, and no node type of `autoscaling.nodeTypes` could take it; the message "
        "says why, type by type",
        "ask for less, or describe a type that takes it",
    )
    ALLOCATION_RECORDED = (
        "AllocationRecorded",
        _NORMAL,
        "agent",
        "the pod was bound without an allocation; the one that the kubelet made is recorded now. Earlier "
        "builds called this event `GpuAssigned`",
        "nothing",
    )
    GPU_BOOKING_CORRECTED = (
        "GpuBookingCorrected",
        _WARNING,
        "agent",
        "the kubelet gave the pod other GPUs than the booked ones, and the booking was corrected",
        "nothing, unless it happens often",
    )
    GPU_FORGOTTEN = (
        "GpuForgotten",
        _WARNING,
        "agent",
        "the kubelet has forgotten the devices of a container that runs; it runs on, and cannot be started again",
        "delete the pod when it suits you",
    )
    GPU_MISSING = (
        "GpuMissing",
        _WARNING,
        "agent",
        "the pod's containers run without the GPUs that they ask for",
        "delete the pod, so that it is admitted again",
    )


class ConditionType(StrEnum):
    """The type of a condition of a node: who writes it, and what "True" means, which is the bad news."""

    component: str
    meaning: str

    def __new__(cls, name: str, component: str, meaning: str) -> Self:
        """Make a type that is its name."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.component, made.meaning = component, meaning
        return made

    DRIVER_PROBLEM = (
        "gputile.io/DriverProblem",
        "agent",
        "there is no driver, or it does not answer; nothing is offered",
    )
    CARD_PROBLEM = "gputile.io/CardProblem", "agent", "some GPUs are unhealthy and are not offered until they recover"
    MODE_PENDING = "gputile.io/ModePending", "agent", "the mode that the node's label asks for is not in force"
    MEMORY_UNIT_REFUSED = (
        "gputile.io/MemoryUnitRefused",
        "agent",
        "the configured memory unit is not in force on this node",
    )
    MIG_PROBLEM = "gputile.io/MigProblem", "agent", "MIG is not as the node's label asks for"
    MPS_PROBLEM = (
        "gputile.io/MpsProblem",
        "agent",
        "mode `mps` is asked for, and no control daemon runs, or there is no safe place for its pipes (`mps` "
        "in `--state-dir`, mounted `nosuid`); nothing is offered",
    )
    OTHER_DEVICE_PLUGIN = (
        "gputile.io/OtherDevicePlugin",
        "agent",
        "another device plugin serves GPUs here; gputile offers nothing",
    )
    PLACEMENT_REFUSED = (
        "gputile.io/PlacementRefused",
        "agent",
        "the label `ack.node.gpu.placement` is not valid and is ignored",
    )
    TIME_POLICY_REFUSED = (
        "gputile.io/TimePolicyRefused",
        "agent",
        "the label `gputile.io/gpu-time-policy` is not valid and is ignored",
    )
    AGENT_SILENT = (
        "gputile.io/AgentSilent",
        "controller",
        "the node should offer GPUs and does not, and its agent does not say why",
    )


class ConditionReason(StrEnum):
    """The reason of conditions of the types ``of``: its meaning, and the remedy."""

    of: tuple[ConditionType, ...]
    meaning: str
    remedy: str

    def __new__(cls, name: str, of: tuple[ConditionType, ...], meaning: str, remedy: str) -> Self:
        """Make a reason that is its name."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.of, made.meaning, made.remedy = of, meaning, remedy
        return made

    DRIVER_MISSING = (
        "DriverMissing",
        (ConditionType.DRIVER_PROBLEM,),
        "the driver's library `libnvidia-ml.so.1` is not found",
        "install the driver, and let the agent see it",
    )
    DRIVER_NOT_LOADED = (
        "DriverNotLoaded",
        (ConditionType.DRIVER_PROBLEM,),
        "the driver's kernel module is not loaded",
        "`modprobe nvidia`, and look for its error in the kernel's log",
    )
    DRIVER_VERSION_MISMATCH = (
        "DriverVersionMismatch",
        (ConditionType.DRIVER_PROBLEM,),
        "library and kernel module are of different versions",
        "reload the module or reboot the node",
    )
    DRIVER_NO_PERMISSION = (
        "DriverNoPermission",
        (ConditionType.DRIVER_PROBLEM, ConditionType.CARD_PROBLEM),
        "the driver refuses the agent",
        "let the agent open `/dev/nvidiactl` and `/dev/nvidia*`",
    )
    DRIVER_ERROR = (
        "DriverError",
        (ConditionType.DRIVER_PROBLEM, ConditionType.CARD_PROBLEM),
        "the driver answers with an error; the message has it",
        "look it up in the kernel's log",
    )
    STARTING = (
        "Starting",
        (ConditionType.DRIVER_PROBLEM, ConditionType.CARD_PROBLEM),
        "the agent has just started and has not looked at the GPUs yet",
        "nothing",
    )
    DRIVER_ANSWERS = "DriverAnswers", (ConditionType.DRIVER_PROBLEM,), "`False`: the driver answers", "nothing"
    CARD_UNHEALTHY = (
        "CardUnhealthy",
        (ConditionType.CARD_PROBLEM,),
        "a GPU had an error that it has not recovered from (XID, ECC)",
        "the message names the GPU and the error",
    )
    CARD_LOST = (
        "CardLost",
        (ConditionType.CARD_PROBLEM,),
        "a GPU has fallen off the bus",
        "reset it or reboot the node; replace it if it happens again",
    )
    CARD_NEEDS_RESET = (
        "CardNeedsReset",
        (ConditionType.CARD_PROBLEM,),
        "a GPU must be reset before use",
        "drain the node, `nvidia-smi --gpu-reset`",
    )
    CARD_WITHOUT_MEMORY = (
        "CardWithoutMemory",
        (ConditionType.CARD_PROBLEM,),
        "a GPU reports no memory of its own",
        "it cannot be shared by memory",
    )
    CARDS_HEALTHY = "CardsHealthy", (ConditionType.CARD_PROBLEM,), "`False`: all GPUs are healthy", "nothing"
    INVALID_LABEL = (
        "InvalidLabel",
        (
            ConditionType.MODE_PENDING,
            ConditionType.PLACEMENT_REFUSED,
            ConditionType.TIME_POLICY_REFUSED,
            ConditionType.AGENT_SILENT,
        ),
        "a label's value is not valid; the message names the valid ones",
        "correct the label",
    )
    FEATURE_DISABLED = (
        "FeatureDisabled",
        (ConditionType.MODE_PENDING,),
        "the configuration does not allow the mode (`features`)",
        "enable it, or correct the label",
    )
    PODS_ON_NODE = (
        "PodsOnNode",
        (ConditionType.MODE_PENDING,),
        "the mode changes when the pods that the message names are gone",
        "wait, or delete them",
    )
    CLOSING = (
        "Closing",
        (ConditionType.MODE_PENDING,),
        "`False`: the node takes no GPU pods for a moment, then its mode changes",
        "nothing",
    )
    MODE_IN_FORCE = "ModeInForce", (ConditionType.MODE_PENDING,), "`False`: the mode is in force", "nothing"
    TOO_MANY_DEVICES = (
        "TooManyDevices",
        (ConditionType.MEMORY_UNIT_REFUSED,),
        "the unit makes more devices than fit the kubelet's 4 MB message",
        "use the unit that the message names, or a larger one",
    )
    UNIT_IN_FORCE = "UnitInForce", (ConditionType.MEMORY_UNIT_REFUSED,), "`False`: the unit is in force", "nothing"
    NO_MIG_INSTANCES = (
        "NoMigInstances",
        (ConditionType.MIG_PROBLEM,),
        "the node should offer MIG instances, and a GPU has none",
        "`nvidia-smi -mig 1`, `nvidia-smi mig -cgi`",
    )
    MIG_NOT_OFFERED = (
        "MigNotOffered",
        (ConditionType.MIG_PROBLEM,),
        "a GPU is in MIG mode, and the node's label does not ask for MIG",
        "set `gputile.io/sharing=mig`, or switch MIG off",
    )
    MIG_AS_ASKED = "MigAsAsked", (ConditionType.MIG_PROBLEM,), "`False`", "nothing"
    CONTROL_DAEMON_MISSING = (
        "ControlDaemonMissing",
        (ConditionType.MPS_PROBLEM,),
        "no MPS control daemon runs; the message says why",
        "fix what the message names",
    )
    NOT_NEEDED_OR_RUNNING = "NotNeededOrRunning", (ConditionType.MPS_PROBLEM,), "`False`", "nothing"
    OTHER_PLUGIN_FOUND = (
        "OtherPluginFound",
        (ConditionType.OTHER_DEVICE_PLUGIN,),
        "another device plugin offers GPUs; the message names them",
        "remove one of the two",
    )
    NONE_FOUND = "NoneFound", (ConditionType.OTHER_DEVICE_PLUGIN,), "`False`", "nothing"
    VALID = (
        "Valid",
        (ConditionType.PLACEMENT_REFUSED, ConditionType.TIME_POLICY_REFUSED),
        "`False`: the label is valid or absent",
        "nothing",
    )
    NO_AGENT = (
        "NoAgent",
        (ConditionType.AGENT_SILENT,),
        "the mode label is set, and no agent has reported GPUs",
        "look at the agent's pod on that node",
    )
    INVENTORY_UNREADABLE = (
        "InventoryUnreadable",
        (ConditionType.AGENT_SILENT,),
        "the annotation `gputile.io/inventory` cannot be read",
        "restart the node's agent; look for who else writes it",
    )
    NOTHING_OFFERED = (
        "NothingOffered",
        (ConditionType.AGENT_SILENT,),
        "the agent reported GPUs, and the kubelet offers none",
        "look at the agent's pod and log",
    )
    AGENT_HEARD = "AgentHeard", (ConditionType.AGENT_SILENT,), "`False`", "nothing"
