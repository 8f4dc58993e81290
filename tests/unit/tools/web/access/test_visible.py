"""What somebody may not list has no name anywhere in what is sent, and its size stays."""

import msgspec
import pytest

from gputile.tools.web.access.viewers import ALL_RIGHTS, Rights
from gputile.tools.web.access.visible import (
    HIDDEN,
    visible_difference,
    visible_nodes,
    visible_pending,
    visible_pod_usage,
    visible_usage,
)
from gputile.tools.web.page.records import (
    Difference,
    GpuTile,
    NodeTile,
    NodeUsage,
    PendingPod,
    PodTile,
    PodUsage,
    PodUsageAnswer,
    TileShare,
    UsageAnswer,
)

pytestmark = pytest.mark.requirement("B7", "B2")

TEAM = Rights(namespaces=frozenset({"mine"}))
SECRET = PodTile("theirs", "secret", (TileShare(0, 1024, 30),), "secret-work", created=5, problem="secret is lost")
OPEN = PodTile("mine", "open", (TileShare(0, 2048),), "work", created=7)
NODE = NodeTile(
    "n", "cgpu", gpus=(GpuTile(0, 8192, booked=3072),), pods=(SECRET, OPEN), problems=("theirs/secret waits",)
)
PENDING = [PendingPod("theirs", "secret", "1 GiB"), PendingPod("mine", "open", "1 GiB")]


def test_blocks_of_others_have_a_size_and_no_name() -> None:
    (node,) = visible_nodes([NODE], TEAM)
    assert node.pods == (OPEN, PodTile(HIDDEN, HIDDEN, (TileShare(0, 1024, 30),)))
    assert node.gpus == NODE.gpus
    assert visible_pending(PENDING, TEAM) == PENDING[1:]


def test_nothing_that_is_sent_has_a_name_of_others() -> None:
    keys = {f"{each.namespace}/{each.name}": each for each in PENDING}
    found = visible_difference(Difference({"n": NODE}, ("gone",), keys, ("theirs/secret-gone", "mine/gone")), TEAM)
    usage = UsageAnswer(nodes={"n": NodeUsage({"theirs/secret": PodUsage(1), "mine/open": PodUsage(2)}, {0: 3})})
    sent = msgspec.json.encode([found, visible_usage(usage, TEAM)])
    assert b"secret" not in sent
    assert b"theirs" not in sent
    assert (found.nodes_gone, found.pending_gone) == (("gone",), ("mine/gone",))
    assert visible_usage(usage, TEAM).nodes["n"] == NodeUsage({"mine/open": PodUsage(2)}, {0: 3})


def test_what_a_request_said_names_the_agents_pod() -> None:
    said = "GET /api/v1/namespaces/gputile/pods/agent-x/proxy: 503"
    usage = UsageAnswer(said, {"n": NodeUsage(problem=said)})
    sent = msgspec.json.encode([visible_usage(usage, TEAM), visible_pod_usage(PodUsageAnswer(said), TEAM)])
    assert b"agent-x" not in sent
    assert sent.count(b"the use is not known") == 3
    assert visible_usage(usage, ALL_RIGHTS) == usage
    assert visible_pod_usage(PodUsageAnswer(), TEAM) == PodUsageAnswer()


def test_who_may_list_everything_sees_it() -> None:
    assert visible_nodes([NODE], ALL_RIGHTS) == [NODE]
    assert visible_pending(PENDING, ALL_RIGHTS) == PENDING


def test_a_node_in_order_has_nothing_wrong() -> None:
    assert visible_nodes([NodeTile("n")], TEAM) == [NodeTile("n")]
