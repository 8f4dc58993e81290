"""What is read of an agent's metrics, and that other text is refused as such."""

import pytest
from prometheus_client import generate_latest

from gputile.node.agent.status.metrics import AgentMetrics, TimeUsed
from gputile.tools.web.agent_metrics import AgentReading, UnreadableMetrics, agent_reading, mib
from tests.fakes.agents import metrics_text

pytestmark = pytest.mark.requirement("B7")


def test_containers_and_gpus_of_a_pod_are_added_up() -> None:
    text = metrics_text({"a/p": 5, "b/p": 7}, {"a/p": 1.5})
    more = text.replace(b'container="c"', b'container="d"').replace(b"gpu_info", b"other").replace(b"gpu_mem", b"x")
    assert agent_reading(text + more) == AgentReading({"a/p": 10, "b/p": 14}, {"a/p": 3.0}, {0: 12 + (1 << 20)})


def test_what_an_agent_serves_of_gpu_time_is_read() -> None:
    metrics = AgentMetrics()
    metrics.gpu_times.rows = (TimeUsed("ns", 'p"\\', "c", "GPU-a", 2.0, 1.0), TimeUsed("ns", "q", "c", "GPU-a", 3.5, 0))
    found = agent_reading(generate_latest(metrics.registry))
    assert found.pod_seconds == {'ns/p"\\': 2.0, "ns/q": 3.5}


def test_a_gpu_without_a_number_is_left_out() -> None:
    assert agent_reading(b'gputile_agent_gpu_memory_used_bytes{gpu="GPU-x"} 5\n') == AgentReading()


@pytest.mark.parametrize("text", [b"", b"<html>\n", b"\xff\x00", b"gputile_agent_gpu_information 1\n"])
def test_text_without_the_series_says_nothing(text: bytes) -> None:
    assert agent_reading(text) == AgentReading()


@pytest.mark.parametrize(
    "text",
    [
        b"gputile_agent_gpu_info{",
        b'gputile_agent_gpu_info{gpu="a"} 1',
        b'gputile_agent_gpu_info{gpu="a",index="x"} 1',
        b'gputile_agent_container_memory_used_bytes{namespace="a",pod="p"} NaN',
        b'gputile_agent_container_memory_used_bytes{namespace="a",pod="p"} +Inf',
        b'gputile_agent_container_memory_used_bytes{pod="p"} 1',
    ],
)
def test_series_that_no_agent_writes_are_refused(text: bytes) -> None:
    with pytest.raises(UnreadableMetrics, match="no metrics of an agent"):
        agent_reading(text)


def test_what_uses_a_byte_uses_a_mib() -> None:
    assert [mib(count) for count in (0, 1, 1 << 20, (1 << 20) + 1)] == [0, 1, 1, 2]
