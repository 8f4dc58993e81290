"""Says on the node what it offers and what is wrong with it, with an event beside what is new."""

from datetime import datetime
from typing import Final

from gputile.api.core import Node, NodeCondition, ObjectReference
from gputile.core.devices.inventory import encode_inventory
from gputile.node.agent.advertise.advertised_state import AdvertisedState
from gputile.node.agent.advertise.labels import node_labels
from gputile.node.agent.advertise.mode_and_unit import placement_condition
from gputile.node.agent.advertise.node_offer import mig_condition, mps_condition
from gputile.node.agent.advertise.other_plugin import other_plugin_condition
from gputile.node.agent.api_server import NodeApi
from gputile.node.agent.gpu_time.time_shares import time_condition
from gputile.node.agent.status.published import Wanted, gpu_conditions, node_patch
from gputile.node.nvml.monitor import Observation

_WARNING: Final = "Warning"


def wanted_status(advertised: AdvertisedState, seen: Observation, *, opened: bool = False) -> Wanted:
    """Return what the node should say; ``opened``: no exchange of agents keeps it closed any more."""
    inventory = advertised.published()
    effective_mode = advertised.plan.effective_mode
    return Wanted(
        labels=node_labels(advertised.allocation_state.node_config.inventory.gpus),
        inventory=encode_inventory(inventory) if inventory is not None else None,
        conditions=(
            *gpu_conditions(seen.machine, seen.health),
            *advertised.plan.conditions,
            other_plugin_condition(advertised.other_plugin),
            mig_condition(seen.machine, effective_mode),
            mps_condition(effective_mode, advertised.mps_problem),
            time_condition(advertised.allocation_state.labels),
            placement_condition(advertised.allocation_state.labels),
        ),
        opened=opened,
        shared_gpus=_shared_gpus(advertised),
    )


def _shared_gpus(advertised: AdvertisedState) -> int | None:
    """Return how many GPUs share their memory here; None where another plugin, gpushare's say, counts them."""
    if advertised.other_plugin:
        return None
    node_config = advertised.allocation_state.node_config
    return len(node_config.inventory.gpus) if node_config.mode.shared and not node_config.withheld else 0


async def tell_node(cluster: NodeApi, node: Node, wanted: Wanted, now: datetime) -> bool:
    """Write what is ``wanted`` where ``node`` says otherwise; return whether it did.

    Raises:
        KubeError: it cannot be written.
    """
    about = ObjectReference(kind="Node", name=node.metadata.name, uid=node.metadata.uid, api_version="v1")
    before = {condition.type: condition for condition in node.status.conditions}
    for condition in wanted.conditions:
        kind = _news(before.get(condition.type), condition)
        if kind == _WARNING:
            cluster.record(about, condition.reason, condition.message, _WARNING)
        elif kind:
            cluster.record(about, condition.reason, condition.message)
    patch = node_patch(node, wanted, now)
    if patch is None:
        return False
    await cluster.patch_node(patch)
    return True


def _news(old: NodeCondition | None, new: NodeCondition) -> str:
    """Return the type of the event for a condition: where it turns bad or says something new, or turns good again."""
    if new.status == "True" and (old is None or old.message != new.message):
        return _WARNING
    return "Normal" if new.status == "False" and old is not None and old.status == "True" else ""
