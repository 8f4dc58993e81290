"""Names every event about a pod and every condition of a node that gputile writes.

Names are Kubernetes' CamelCase reasons. ``docs/generator/reasons.toml`` says what each means, who writes it and what
people should do.
"""

from enum import StrEnum


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
    """The type of a condition of a node, whose "True" is the bad news."""

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
