"""Parts of GPU time from readings: of two of the same containers, and of no others."""

import pytest

from gputile.tools.web.agent_metrics import AgentReading
from gputile.tools.web.records import NodeUsage, PodUsage
from gputile.tools.web.usage_meter import UsageMeter

pytestmark = pytest.mark.requirement("B7")

MIB = 1 << 20


def test_memory_is_known_at_once_and_gpu_time_from_the_second_reading() -> None:
    meter = UsageMeter()
    first = meter.take("n", 100.0, AgentReading({"a/p": 3 * MIB}, {"a/p": 50.0, "a/q": 1.0}, {1: 5 * MIB}))
    assert first == NodeUsage({"a/p": PodUsage(3), "a/q": PodUsage(None)}, {1: 5})
    second = meter.take("n", 110.0, AgentReading({"a/p": 4 * MIB}, {"a/p": 54.0, "a/q": 1.0}))
    assert second == NodeUsage({"a/p": PodUsage(4, 40), "a/q": PodUsage(None, 0)})


@pytest.mark.parametrize(("at_s", "seconds"), [(110.0, {"a/p": 49.0}), (110.0, {}), (100.0, {"a/p": 60.0})])
def test_containers_that_started_again_and_clocks_that_stand_have_no_part(
    at_s: float, seconds: dict[str, float]
) -> None:
    meter = UsageMeter()
    meter.take("n", 100.0, AgentReading({"a/p": MIB}, {"a/p": 50.0}))
    assert meter.take("n", at_s, AgentReading({"a/p": MIB}, seconds)).pods["a/p"] == PodUsage(1)


def test_a_node_that_nobody_looks_at_is_forgotten() -> None:
    meter = UsageMeter()
    for node in ("n", "other"):
        meter.take(node, 100.0, AgentReading({}, {"a/p": 50.0}))
    meter.keep(["other"])
    assert meter.take("n", 110.0, AgentReading({}, {"a/p": 60.0})).pods["a/p"].percent is None
    assert meter.take("other", 110.0, AgentReading({}, {"a/p": 60.0})).pods["a/p"].percent == 100
