"""What is read of an agent's metrics, and that other text is refused as such."""

import pytest
from prometheus_client import generate_latest

from gputile.node.agent.decisions.publishing.time_shares import TimeUsed
from gputile.node.agent.state.pod_devices import PodContainer
from gputile.node.agent.status.call_metrics import AgentMetrics
from gputile.tools.web.usage.agent_metrics import AgentReading, UnreadableMetrics, agent_reading, mib
from tests.fakes.agents import metrics_text

pytestmark = pytest.mark.requirement("B7")


def test_containers_and_gpus_of_a_pod_are_added_up() -> None:
    text = metrics_text({"a/p": 5, "b/p": 7}, {"a/p": 1.5})
    more = text.replace(b'container="c"', b'container="d"').replace(b"gpu_mem", b"x")
    assert agent_reading(text + more) == AgentReading(
        {"a/p": {0: 10}, "b/p": {0: 14}}, {"a/p": 3.0}, {0: 12 + (1 << 20)}
    )


def test_memory_of_a_pod_is_told_apart_by_gpu() -> None:
    text = metrics_text({"a/p": 5})
    other = text.replace(b'c",gpu="0"', b'c",gpu="1"')
    assert agent_reading(text + other).pod_bytes == {"a/p": {0: 5, 1: 5}}


def test_what_an_agent_serves_of_gpu_time_is_read() -> None:
    metrics = AgentMetrics()
    metrics.gpu_times.rows = (
        TimeUsed(PodContainer("u", "ns", 'p"\\', "c"), "0", 2.0, 1.0),
        TimeUsed(PodContainer("v", "ns", "q", "c"), "0", 3.5, 0),
    )
    metrics.agents_started = 3
    found = agent_reading(generate_latest(metrics.registry))
    assert (found.pod_seconds, found.agents_started) == ({'ns/p"\\': 2.0, "ns/q": 3.5}, 3)


def test_metrics_without_the_series_say_nothing() -> None:
    assert agent_reading(b"gputile_agent_gpu_information 1\n") == AgentReading()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>login</html>\n",
        b"\xff\x00",
        b"gputile_agent_gpu_memory_used_bytes{",
        b'gputile_agent_gpu_memory_used_bytes{index="0"} 1',
        b'gputile_agent_gpu_memory_used_bytes{gpu="GPU-x"} 1',
        b'gputile_agent_container_memory_used_bytes{namespace="a",pod="p"} NaN',
        b'gputile_agent_container_memory_used_bytes{namespace="a",pod="p"} +Inf',
        b'gputile_agent_container_memory_used_bytes{namespace="a",pod="p"} -1',
        b'gputile_agent_container_memory_used_bytes{namespace="a",pod="p"} 1e30',
        b'gputile_agent_container_memory_used_bytes{pod="p"} 1',
        b'gputile_agent_gpu_time_seconds_total{namespace="a",pod="p"} NaN',
        b'gputile_agent_gpu_time_seconds_total{namespace="a",pod="p"} +Inf',
        b'gputile_agent_gpu_time_seconds_total{namespace="a",pod="p"} -1',
        b'gputile_agent_gpu_time_seconds_total{namespace="a",pod="p"} 1e300',
    ],
)
def test_series_that_no_agent_writes_are_refused(text: bytes) -> None:
    with pytest.raises(UnreadableMetrics):
        agent_reading(text)


def test_what_uses_a_byte_uses_a_mib() -> None:
    assert [mib(count) for count in (0, 1, 1 << 20, (1 << 20) + 1)] == [0, 1, 1, 2]
