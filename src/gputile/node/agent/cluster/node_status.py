"""Says on the node what it advertises and what is wrong with it, with an event beside what is new."""

from datetime import datetime
from typing import Final

from gputile.api.core import Node, NodeCondition, ObjectReference
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.decisions.publishing.published import Wanted, node_patch

_WARNING: Final = "Warning"


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
