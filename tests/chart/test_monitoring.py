"""PodMonitors, alerts and dashboards of the chart; tests/e2e runs the queries against real components."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.dashboards import DASHBOARDS, DIRECTORY, rendered
from docs.generator.metrics import entries
from docs.generator.pages import DOCS

from tests.chart.helmcli import CHART, of_kind, render
from tests.localcluster.binaries import debian_program, skip_or_fail
from tests.localcluster.gomodule import ComponentMissing

pytestmark = pytest.mark.requirement("B7")

ALL = {f"monitoring.{part}.enabled": True for part in ("podMonitors", "alerts", "dashboards")}
GROUPS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
RULES = [rule for group in GROUPS for rule in group["rules"]]
_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


def queries() -> list[str]:
    panels = [query for board in DASHBOARDS for panel in board.panels for query in panel.queries.values()]
    return [*panels, *(rule["expr"] for rule in RULES)]


@pytest.fixture
def promtool() -> Path:
    try:
        return debian_program("promtool", "prometheus")
    except ComponentMissing as missing:
        skip_or_fail(missing)


def test_nothing_of_it_is_there_unless_it_is_asked_for() -> None:
    """Its kinds are unknown to a cluster without the Prometheus Operator."""
    kinds = {each["kind"] for each in render({})}
    assert kinds.isdisjoint({"PodMonitor", "PrometheusRule"})
    assert not any("dashboard" in each["metadata"]["name"] for each in render({}))


def test_each_components_port_of_metrics_is_scraped() -> None:
    objects = render(ALL | {"monitoring.podMonitors.labels": {"release": "prometheus"}})
    workloads = of_kind(objects, "Deployment") | of_kind(objects, "DaemonSet")
    monitors = of_kind(objects, "PodMonitor")
    assert monitors.keys() == {"gputile-scheduler", "gputile-controller", "gputile-webhook", "gputile-agent"}
    for name, monitor in monitors.items():
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        template = workloads[name]["spec"]["template"]
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= template["metadata"]["labels"].items()
        ports = [port["name"] for each in template["spec"]["containers"] for port in each.get("ports", [])]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert ports.count(endpoint["port"]) == 1
        assert endpoint["honorLabels"] is True


def test_the_alerts_are_those_of_the_file() -> None:
    rule = of_kind(render(ALL), "PrometheusRule")["gputile"]
    assert rule["spec"]["groups"] == GROUPS


def test_the_dashboards_are_those_of_the_description() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == {f"{board.name}.json" for board in DASHBOARDS}
    shown = of_kind(render(ALL), "ConfigMap")
    for board in DASHBOARDS:
        assert (DIRECTORY / f"{board.name}.json").read_text(encoding="utf-8") == rendered(board), "make dashboards"
        found = shown[f"gputile-dashboard-{board.name}"]
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["data"] == {f"gputile-{board.name}.json": rendered(board).rstrip("\n")}


def test_queries_name_metrics_and_labels_that_there_are() -> None:
    known = {entry.name for entry in entries()}
    for query in queries():
        named = {_HISTOGRAM.sub("", name) for name in re.findall(r"gputile_\w+", query)}
        assert named <= known, query
        assert named, query


def test_promtool_takes_the_rules(promtool: Path, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": GROUPS}))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


_DAY = 86400
_SINCE = "gputile_extender_pending_since_timestamp_seconds"
_ACTIVE = 'gputile_extender_active{instance="a"}'
_SILENT_SINCE = "gputile_controller_silent_since_timestamp_seconds"
_GANGS_SINCE = "gputile_controller_gangs_waiting_since_timestamp_seconds"
# For each alert: series that make it fire, the same where all is well, and the labels that it names beside severity.
FIRING: dict[str, tuple[dict[str, str], dict[str, str], dict[str, str]]] = {
    "GputileGpuUnhealthy": (
        {'gputile_agent_gpu_healthy{node="n",gpu="0"}': "0x60"},
        {'gputile_agent_gpu_healthy{node="n",gpu="0"}': "1x60"},
        {"node": "n", "gpu": "0"},
    ),
    "GputileAgentSilent": (
        {f'{_SILENT_SINCE}{{instance="{name}"}}': "600x60" for name in "ab"},
        {f'{_SILENT_SINCE}{{instance="a"}}': "-60+60x60", f'{_SILENT_SINCE}{{instance="b"}}': "0x60"},
        {},
    ),
    "GputileLedgerDisagrees": (
        {
            'gputile_agent_allocations_corrected_total{node="n"}': "0+1x60",
            'gputile_agent_kubelet_calls_refused_total{node="n"}': "0x60",
        },
        {
            'gputile_agent_allocations_corrected_total{node="n"}': "1x60",
            'gputile_agent_kubelet_calls_refused_total{node="n"}': "0x60",
        },
        {"node": "n"},
    ),
    "GputileOverallocated": (
        {'gputile_ledger_overallocated_gpus{instance="a"}': "2x60"},
        {'gputile_ledger_overallocated_gpus{instance="a"}': "0x60"},
        {},
    ),
    # Time begins at 0: by the 45th minute a pod has waited since the 10th, or each for a minute.
    "GputilePodsPending": (
        {f'{_SINCE}{{reason="no_gpu_fits",instance="a"}}': "600x60", _ACTIVE: "1x60"},
        {
            f'{_SINCE}{{reason="no_gpu_fits",instance="a"}}': "-60+60x60",
            f'{_SINCE}{{reason="gated",instance="a"}}': "600x60",
            f'{_SINCE}{{reason="no_gpu_fits",instance="standby"}}': "600x60",
            _ACTIVE: "1x60",
        },
        {},
    ),
    "GputileGangsPending": (
        {f'{_GANGS_SINCE}{{instance="a"}}': "600x60", f'{_GANGS_SINCE}{{instance="standby"}}': "0x60"},
        {f'{_GANGS_SINCE}{{instance="a"}}': "-60+60x60", f'{_GANGS_SINCE}{{instance="standby"}}': "0x60"},
        {},
    ),
    "GputileCertificateEnds": (
        {"gputile_webhook_certificate_expiry_timestamp_seconds": "1800x60"},
        {"gputile_webhook_certificate_expiry_timestamp_seconds": f"{60 * _DAY}x60"},
        {},
    ),
}


def test_each_alert_fires_when_it_should_and_not_otherwise(promtool: Path, tmp_path: Path) -> None:
    """Time is Prometheus' own, from 0: no certificate of today plays a part. What alerts say in words is left out."""
    rules = tmp_path / "rules.yaml"
    silent = [{key: value for key, value in rule.items() if key != "annotations"} for rule in RULES]
    rules.write_text(yaml.safe_dump({"groups": [{"name": "gputile", "rules": silent}]}))
    assert FIRING.keys() == {rule["alert"] for rule in RULES}
    tests = []
    for rule in RULES:
        bad, good, labels = FIRING[rule["alert"]]
        for series, fires in ((bad, True), (good, False)):
            asked: dict[str, Any] = {"eval_time": "45m", "alertname": rule["alert"]}
            if fires:
                asked["exp_alerts"] = [{"exp_labels": {**labels, **rule["labels"]}}]
            written = [{"series": name, "values": values} for name, values in series.items()]
            tests.append({"interval": "1m", "input_series": written, "alert_rule_test": [asked]})
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


_USED = "gputile_agent_gpu_memory_used_bytes"
_CERTIFICATE = "gputile_webhook_certificate_expiry_timestamp_seconds"
_OF_CONTAINER = 'gputile_agent_container_memory_used_bytes{node="n",gpu="1",pod="p",container="c"}'

# The ledger knows neither GPUs that are split into MIG instances nor those of other device plugins. Of GPU 1
# of n the driver does not tell what is in use. Each of the three sums is of the other three GPUs.
_GPUS = {
    f'gputile_agent_gpu_{metric}{{node="{node}",gpu="{gpu}"}}': value
    for (node, gpu), values in {
        ("n", 0): ("100", "40", "1"),
        ("split", 0): ("200", "0", "10"),
        ("of-others", 0): ("400", "0", "300"),
        ("n", 1): ("1000", "500", ""),
    }.items()
    for metric, value in zip(("memory_bytes", "memory_booked_bytes", "memory_used_bytes"), values, strict=True)
    if value
} | {"gputile_ledger_gpu_memory_bytes": "1100", "gputile_ledger_gpu_memory_booked_bytes": "540"}
_SUMS = {"total": 700, "booked": 40, "used": 311}

# By dashboard, panel and legend: the series that there are, and what the panel shows a minute later.
SHOWN: dict[tuple[str, str, str], tuple[dict[str, str], dict[str, float]]] = {
    ("isolation", "Memory that no container counts", "{{node}} {{gpu}}"): (
        {f'{_USED}{{node="n",gpu="0"}}': "21", f'{_USED}{{node="n",gpu="1"}}': "22", _OF_CONTAINER: "20"},
        {'{node="n", gpu="0"}': 21, '{node="n", gpu="1"}': 2},
    ),
    ("cluster", "Certificate of the webhook", "left"): (
        {f'{_CERTIFICATE}{{instance="a"}}': "0", f'{_CERTIFICATE}{{instance="b"}}': "9060"},
        {"{}": 9000},
    ),
    **{("cluster", "GPU memory", legend): (_GPUS, {"{}": sum_}) for legend, sum_ in _SUMS.items()},
}


@pytest.mark.parametrize("where", SHOWN)
def test_a_panel_shows_what_it_says(where: tuple[str, str, str], promtool: Path, tmp_path: Path) -> None:
    name, title, legend = where
    board = next(each for each in DASHBOARDS if each.name == name)
    query = next(panel for panel in board.panels if panel.title == title).queries[legend]
    series, shows = SHOWN[where]
    path = tmp_path / "tests.yaml"
    written = [{"series": each, "values": f"{value}+0x5"} for each, value in series.items()]
    samples = [{"labels": labels, "value": value} for labels, value in shows.items()]
    asked = {"expr": query, "eval_time": "1m", "exp_samples": samples}
    path.write_text(yaml.safe_dump({"tests": [{"input_series": written, "promql_expr_test": [asked]}]}))
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_on_the_page_of_monitoring() -> None:
    page = (DOCS / "guides" / "monitoring.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(Gputile\w+)`", page, re.MULTILINE) == [rule["alert"] for rule in RULES]
    assert re.findall(r"^\| `gputile: (\w+)`", page, re.MULTILINE) == [board.name for board in DASHBOARDS]
