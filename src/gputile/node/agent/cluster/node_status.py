"""Says on the node what it advertises and what is wrong with it, with an event beside what is new.

``python -m gputile.node.agent.cluster.node_status SETTINGS`` removes what an agent said of a node whose GPUs are gone.
A resting agent reads and writes nothing; it runs this until it has succeeded once, so that a node without GPUs does not
go on as one with (U11).
"""

import asyncio
import sys
from datetime import datetime
from typing import Final

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.core import Node, NodeCondition, ObjectReference
from gputile.kube.client import STRATEGIC_MERGE_PATCH, Connection
from gputile.kube.config import load_access
from gputile.kube.errors import KubeError, NotFound
from gputile.node.agent.cluster.api_server import NodeApi
from gputile.node.agent.cluster.published import Wanted, farewell_patch, node_patch
from gputile.node.agent.settings import NODE, AgentSettings, decode_settings

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


async def leave(settings: AgentSettings) -> str:
    """Remove from the node what an agent said of it; return what was done.

    Raises:
        KubeError: the node cannot be read or written.
    """
    path = f"/api/v1/nodes/{settings.node_name}"
    async with Connection(load_access(settings.kubeconfig, settings.context)) as connection:
        try:
            node = decode(await connection.get(path), NODE)
        except NotFound:
            return ""
        patch = farewell_patch(node)
        if patch is None:
            return ""
        await connection.patch(f"{path}/status", msgspec.json.encode(patch), content_type=STRATEGIC_MERGE_PATCH)
        return "removed what an agent had said of GPUs that are gone"


def main() -> None:
    """Remove it; exit with 1 where that is to be tried again."""
    try:
        done = asyncio.run(leave(decode_settings(sys.argv[1])))
    except (KubeError, ConversionError) as error:
        sys.exit(f"what an agent said of this node is still there: {error}")
    if done:
        sys.stderr.write(f"{done}\n")


if __name__ == "__main__":
    main()
