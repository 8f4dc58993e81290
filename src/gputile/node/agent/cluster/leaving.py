"""Removes what an agent said of a node whose GPUs are gone.

``python -m gputile.node.agent.cluster.leaving SETTINGS``

A resting agent reads and writes nothing; it runs this until it has succeeded once, so that a node without GPUs does not
go on as one with (U11).
"""

import asyncio
import sys

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.kube.client import STRATEGIC_MERGE_PATCH, Connection
from gputile.kube.config import load_access
from gputile.kube.errors import KubeError, NotFound
from gputile.node.agent.decisions.publishing.published import farewell_patch
from gputile.node.agent.settings import NODE, AgentSettings, decode_settings


async def leave(settings: AgentSettings) -> str:
    """Remove it; return what was done.

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
