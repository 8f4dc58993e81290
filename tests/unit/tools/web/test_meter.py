"""Parts of GPU time from readings: of two of the same containers, and of no others."""

from pathlib import Path

import pytest
from prometheus_client import generate_latest

from gputile.api.well_known import Mode
from gputile.node.agent.metrics import AgentMetrics
from gputile.node.arbiter.messages import Spent
from gputile.tools.web.agent_usage import AgentReading, UnreadableMetrics, UsageMeter, agent_reading
from gputile.tools.web.records import NodeUsage, PodUsage
from tests.fakes.agents import metrics_text
from tests.unit.node.agent.test_node_metrics import POD, Node

pytestmark = pytest.mark.requirement("B7")

MIB = 1 << 20


def test_memory_is_known_at_once_and_gpu_time_from_the_second_reading() -> None:
    meter = UsageMeter()
    first = meter.measure(
        "n", 100.0, AgentReading({"a/p": {0: 2 * MIB, 1: MIB}}, {"a/p": 50.0, "a/q": 1.0}, {1: 5 * MIB}), {}
    )
    assert first == NodeUsage({"a/p": PodUsage(3, None, {0: 2, 1: 1}), "a/q": PodUsage(None)}, {1: 5})
    second = meter.measure("n", 110.0, AgentReading({"a/p": {0: 4 * MIB}}, {"a/p": 54.0, "a/q": 1.0}), {})
    assert second == NodeUsage({"a/p": PodUsage(4, 40, {0: 4}), "a/q": PodUsage(None, 0)})


@pytest.mark.parametrize(("at_s", "seconds"), [(110.0, {"a/p": 49.0}), (110.0, {}), (100.0, {"a/p": 60.0})])
def test_containers_that_started_again_and_clocks_that_stand_have_no_part(
    at_s: float, seconds: dict[str, float]
) -> None:
    meter = UsageMeter()
    meter.measure("n", 100.0, AgentReading({"a/p": {0: MIB}}, {"a/p": 50.0}), {})
    assert meter.measure("n", at_s, AgentReading({"a/p": {0: MIB}}, seconds), {}).pods["a/p"] == PodUsage(
        1, None, {0: 1}
    )


def test_an_agent_that_started_again_counts_anew() -> None:
    meter = UsageMeter()
    percents = [
        meter.measure("n", at_s, AgentReading({}, {"a/p": seconds}, agents_started=started), {}).pods["a/p"].percent
        for at_s, seconds, started in ((100.0, 1.0, 1), (110.0, 5.0, 2), (120.0, 6.0, 2))
    ]
    assert percents == [None, None, 10]


def test_containers_and_gpus_of_a_pod_are_added_up() -> None:
    text = metrics_text({"a/p": 5, "b/p": 7}, {"a/p": 1.5})
    more = text.replace(b'container="c"', b'container="d"').replace(b"gpu_mem", b"x")
    assert agent_reading(text + more) == AgentReading(
        {"a/p": {0: 10}, "b/p": {0: 14}}, {"a/p": 3.0}, {0: 12 + (1 << 20)}
    )


def test_what_an_agent_serves_of_gpu_time_is_read(tmp_path: Path) -> None:
    metrics, node = AgentMetrics(), Node(tmp_path, Mode.CGPU)
    node.spent = {(f"{POD}-main", "GPU-1"): Spent(2_000_000_000, 1)}
    metrics.agents_started = 3
    metrics.registry.register(node.metrics)
    found = agent_reading(generate_latest(metrics.registry))
    assert (found.pod_seconds, found.agents_started) == ({"default/a": 2.0}, 3)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>login</html>\n",
        b'gputile_agent_gpu_memory_used_bytes{index="0"} 1',
    ],
)
def test_series_that_no_agent_writes_are_refused(text: bytes) -> None:
    with pytest.raises(UnreadableMetrics):
        agent_reading(text)
