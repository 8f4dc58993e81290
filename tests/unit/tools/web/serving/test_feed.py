"""What has changed goes into the log a piece at a time."""

import asyncio
import json

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.kube.client import Connection
from gputile.kube.config import Access
from gputile.kube.credentials import FixedCredentials
from gputile.tools.web.page.state import PageState
from gputile.tools.web.serving.feed import Feed
from tests.fakes.corebuilders import gpu_node, pod

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B7")]

GIB = 1024
MANY = 260


async def test_many_changes_do_not_hold_the_loop_at_once() -> None:
    state = PageState(Configuration())
    state.nodes_replaced([gpu_node(f"n{i}", mode="cgpu", sizes=[15 * GIB], unit_mib=GIB) for i in range(MANY)])
    state.pods_replaced([pod(f"p{i}", mem=99) for i in range(MANY)])
    feed, turns, agreed = Feed(Connection(Access("http://127.0.0.1:1", FixedCredentials(None, None))), state), 0, 0

    async def others() -> None:
        nonlocal turns, agreed
        while True:
            turns += 1
            told = [json.loads(each.encoded.partition(b"data: ")[2]) for each in feed.log.since(0) or ()]
            agreed += state.page.nodes.keys() == {name for each in told for name in each["nodes"]}
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await feed.publish()
    beside.cancel()
    assert turns >= 5
    assert agreed == turns, "who reads the page between two changes has what the log says by then"
    assert len(state.page.nodes) == len(state.page.pending) == MANY
    assert not state.take_difference()
