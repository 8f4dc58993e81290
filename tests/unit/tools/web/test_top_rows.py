"""Rows of nodes, GPUs and pods: their sums, and their order."""

import pytest

from gputile.cli.commands.live import TopOrder
from gputile.tools.web.records import GpuTile, NodeTile, NodeUsage, PodTile, PodUsage, TileShare
from gputile.tools.web.top_rows import GPU_COLUMNS, NODE_COLUMNS, POD_COLUMNS, table_of, top_answer

pytestmark = pytest.mark.requirement("B7")

GIB = 1024
TILES = [
    NodeTile(
        "b",
        mode="cgpu",
        serves="memory",
        gpus=(GpuTile(0, 16 * GIB, booked=4 * GIB, pods=1), GpuTile(1, 16 * GIB, healthy=False)),
        pods=(PodTile("ns", "small", (TileShare(0, 4 * GIB),)),),
        problems=("GPU 1 is unhealthy",),
    ),
    NodeTile(
        "a",
        mode="core_mem",
        serves="memory",
        gpus=(GpuTile(0, 16 * GIB, "NVIDIA A10", booked=12 * GIB, percent=50, pods=2),),
        pods=(
            PodTile("ns", "large", (TileShare(0, 8 * GIB, 30),)),
            PodTile("ns", "kept", (TileShare(0, 4 * GIB, 20),), reserved=True),
            PodTile("ns", "lost", asked=2 * GIB, problem="nobody knows"),
        ),
        silent=True,
    ),
]


def names(order: TopOrder) -> tuple[list[str], list[str], list[str]]:
    found = top_answer(TILES, order)
    gpus = [f"{gpu.node}{gpu.index}" for gpu in found.gpus]
    return [node.name for node in found.nodes], gpus, [pod.name for pod in found.pods]


def test_the_order_is_what_was_asked_for() -> None:
    assert names(TopOrder.BOOKED) == (["a", "b"], ["a0", "b0", "b1"], ["large", "kept", "small", "lost"])
    assert names(TopOrder.NAME) == (["a", "b"], ["a0", "b0", "b1"], ["kept", "large", "lost", "small"])
    assert names(TopOrder.COMPUTE)[2][:2] == ["large", "kept"]
    assert names(TopOrder.PODS)[0] == ["a", "b"]


def test_rows_by_what_is_used_have_those_last_of_which_it_is_not_known() -> None:
    usage = {"b": NodeUsage({"ns/small": PodUsage(0)}, {0: 1, 1: 2 * GIB})}
    found = top_answer(TILES, TopOrder.USED, usage)
    assert [(node.name, node.used_mib) for node in found.nodes] == [("b", 2 * GIB + 1), ("a", None)]
    assert [(gpu.node, gpu.index) for gpu in found.gpus] == [("b", 1), ("b", 0), ("a", 0)]
    assert [pod.name for pod in found.pods] == ["small", "kept", "large", "lost"]


def test_what_the_tables_say() -> None:
    usage = {"a": NodeUsage({"ns/large": PodUsage(3 * GIB, 40), "ns/lost": PodUsage(None, 7)}, {0: 5 * GIB})}
    found = top_answer(TILES, TopOrder.BOOKED, usage)
    assert table_of(NODE_COLUMNS, found.nodes)[1:] == [
        ("a", "core_mem", "1/1", "12/16", "75%", "5", "50%", "3", "its agent is silent"),
        ("b", "cgpu", "1/2", "4/32", "12%", "-", "-", "1", "GPU 1 is unhealthy"),
    ]
    assert table_of(GPU_COLUMNS, found.gpus)[1] == ("a", "0", "NVIDIA A10", "12/16", "75%", "5", "50%", "2", "ok")
    assert table_of(GPU_COLUMNS, found.gpus)[3][-1] == "unhealthy"
    assert table_of(POD_COLUMNS, found.pods)[1:] == [
        ("ns", "large", "a", "0", "8", "3", "30%", "40%", "bound"),
        ("ns", "kept", "a", "0", "4", "-", "20%", "-", "reserved"),
        ("ns", "small", "b", "0", "4", "-", "-", "-", "bound"),
        ("ns", "lost", "a", "unknown", "2", "-", "-", "7%", "bound"),
    ]


def test_a_pod_on_several_gpus_is_told_by_what_it_uses_of_each() -> None:
    shares = (TileShare(1, 8 * GIB), TileShare(3, 8 * GIB))
    tile = NodeTile("n", pods=(PodTile("ns", "p", shares), PodTile("ns", "q", shares)))
    measured = PodUsage(9 * GIB, gpus={3: 2 * GIB, 1: 7 * GIB}), PodUsage(GIB, gpus={1: GIB})
    found = top_answer([tile], TopOrder.NAME, {"n": NodeUsage(dict(zip(("ns/p", "ns/q"), measured, strict=True)))})
    assert [(pod.used_mib, pod.used_mib_of_gpus) for pod in found.pods] == [
        (9 * GIB, [7 * GIB, 2 * GIB]),
        (GIB, [GIB, None]),
    ]
    assert [row[3:6] for row in table_of(POD_COLUMNS, found.pods)[1:]] == [
        ("1,3", "16", "9 (7, 2)"),
        ("1,3", "16", "1 (1, -)"),
    ]
    unknown = top_answer([tile], TopOrder.NAME).pods
    assert [
        (row[5], each.used_mib_of_gpus) for row, each in zip(table_of(POD_COLUMNS, unknown)[1:], unknown, strict=True)
    ] == [("-", [None, None])] * 2
