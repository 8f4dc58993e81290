"""Every query of the chart's dashboards and alerts, against a real Prometheus that scrapes the real components."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from charts.dashboards import DASHBOARDS, rendered

from gputile.api.well_known import GANG_GATE, GANG_NAME_LABEL, GANG_SIZE_LABEL, GPU_MEMORY, MODE_LABEL
from tests.chart.helmcli import CHART
from tests.e2e.extender import pod_body
from tests.e2e.node import GpuNode, gpu_node, probe_pod
from tests.localcluster import admission
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import start_controller
from tests.localcluster.neighbours import Prometheus, scraping

pytestmark = pytest.mark.requirement("B7")

SETTINGS = {"admission": {"gangs": True}}
CHURN_S = 5.0
COUNTS = ("gputile_extender_pod_wait_seconds_count", "gputile_agent_call_seconds_count")
# What an alert compares with: the rest of its query has data while all is well.
_BOUND = re.compile(r"\s(==|>|<)\s[\d\s*]+$")


def queries() -> list[tuple[str, str]]:
    """Return the place and the text of each query, with Grafana's variables as Grafana fills them in."""
    found = []
    for board in DASHBOARDS:
        for panel in json.loads(rendered(board))["panels"]:
            for target in panel["targets"]:
                text = target["expr"].replace("$__rate_interval", "1m").replace("$node", ".*")
                found.append((f"{board.name}: {panel['title']}", text.replace("$namespace", ".*")))
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8")):
        found += [(rule["alert"], _BOUND.sub("", rule["expr"])) for rule in group["rules"]]
    return found


@pytest.fixture(scope="module")
def watched(
    control_plane: ControlPlane, node_programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GpuNode, Prometheus]]:
    """A node in mode cgpu, with all components of gputile beside it, and a Prometheus."""
    with (
        gpu_node(control_plane, node_programs, "watched", {MODE_LABEL: "cgpu"}, SETTINGS) as here,
        admission.installed(control_plane, settings={"gpuMemoryUnit": "1GiB", **SETTINGS}) as webhook,
    ):
        measure(here)
        control_plane.wait(lambda: here.allocatable().get(GPU_MEMORY) == "640", "the node to offer its GPUs")
        controller, controller_url = start_controller(control_plane, settings=SETTINGS)
        addresses = {
            "agent": urlsplit(here.agent.url).netloc,
            "extender": urlsplit(here.extender_url).netloc,
            "controller": urlsplit(controller_url).netloc,
            "webhook": f"127.0.0.1:{webhook.health_port}",
        }
        with controller, scraping(tmp_path_factory.mktemp("prometheus"), addresses, here.node.name) as prometheus:
            yield here, prometheus


def measure(here: GpuNode) -> None:
    """Have the GPUs measure what GPUs of a machine do."""
    for gpu in here.agent.machine.gpus:
        gpu.used, gpu.busy, gpu.celsius, gpu.milliwatts, gpu.ecc = 5 << 30, 40, 55, 180_000, (3, 0)
    here.agent.machine.write()


def wait_scraped(plane: ControlPlane, prometheus: Prometheus) -> None:
    """Wait until each component has been scraped twice more."""

    def since(moment: float) -> Callable[[], bool]:
        return lambda: all(float(each["value"][1]) > moment for each in prometheus.query("timestamp(up)"))

    for _ in range(2):
        plane.wait(since(time.time()), "a scrape", interval=0.5)


def test_every_query_of_panels_and_alerts_has_data(watched: tuple[GpuNode, Prometheus], namespace: str) -> None:
    here, prometheus = watched
    plane = here.plane
    wait_scraped(plane, prometheus)
    here.create(namespace, *(probe_pod(f"p{number}", {GPU_MEMORY: 3}) for number in range(2)))
    here.wait_running(2, namespace)
    here.create(namespace, pod_body("too-large", {GPU_MEMORY: 600}))
    labels = {GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "3"}
    here.create(namespace, pod_body("alone", {GPU_MEMORY: 1}, labels=labels, schedulingGates=[{"name": GANG_GATE}]))
    labels = {GANG_NAME_LABEL: "waits", GANG_SIZE_LABEL: "2"}
    for name in ("w0", "w1"):
        gated = pod_body(name, {GPU_MEMORY: 600}, labels=labels, schedulingGates=[{"name": GANG_GATE}])
        here.create(namespace, gated)
    here.agent.machine.xid(0, 31)  # an application's own fault: the GPU stays healthy
    missing, churned = set(queries()), [time.monotonic()]

    def all_have_data() -> bool:
        # A rate is of what happens again and again: pods come while the queries wait for it.
        if time.monotonic() - churned[-1] > CHURN_S:
            here.create(namespace, probe_pod(f"more{len(churned)}", {GPU_MEMORY: 1}))
            churned.append(time.monotonic())
        for place, query in list(missing):
            if prometheus.query(query):
                missing.remove((place, query))
        return not missing

    # No kubelet offers GPUs for it, and no agent will say why.
    plane.nodes.create_node("silent", labels={MODE_LABEL: "unknown"}, capacity={"pods": "0"})
    try:
        plane.wait(all_have_data, "data for every query", interval=1.0)
    except TimeoutError as error:
        counts = [prometheus.query(query) for query in COUNTS]
        raise AssertionError(f"no data for {missing}; counted: {counts}") from error
    finally:
        plane.nodes.delete_node("silent")
    assert prometheus.down() == []
    found = prometheus.query(f'gputile_agent_container_memory_limit_bytes{{namespace="{namespace}"}}')
    assert {each["metric"]["pod"] for each in found} >= {"p0", "p1"}
    assert {each["metric"]["node"] for each in found} == {here.node.name}
    (waiting,) = prometheus.query('gputile_extender_pending_pods{reason="no_gpu_fits"}')
    assert float(waiting["value"][1]) == 1
    here.delete_now(namespace, "p0")
    plane.wait(
        lambda: not prometheus.query(f'gputile_agent_container_memory_limit_bytes{{namespace="{namespace}",pod="p0"}}'),
        "the series of the pod to end with it",
        interval=1.0,
    )
