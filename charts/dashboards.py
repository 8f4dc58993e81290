"""Grafana's dashboards, described once: `make dashboards` writes them into the chart.

A panel is a title, what it shows, its unit in Grafana's words, and its queries with the text of
their legends. The queries of all panels are run against a real Prometheus by
tests/e2e/test_monitoring.py.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parent / "gputile" / "files" / "dashboards"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _WIDTH, _HEIGHT = 24, 12, 8
_STAT_WIDTH, _STAT_HEIGHT = 4, 4


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries`` are PromQL by the format of their legend; a ``stat`` shows one
    number.
    """

    title: str
    description: str
    unit: str
    queries: dict[str, str]
    stat: bool = False


@dataclass(frozen=True)
class Dashboard:
    """One dashboard. ``variables`` are what a reader chooses: a label's name, and the metric
    that has its values.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: dict[str, str]


def _active(metric: str) -> str:
    """Return a metric of the extender that decides: standbys do not know what kube-scheduler was
    answered.
    """
    return f"{metric} and on (instance) gputile_extender_active == 1"


def _measured(metric: str) -> str:
    """Return a metric of those GPUs alone whose memory in use is known: only so are its sums
    compared with that.
    """
    return f"{metric} and on (node, gpu) gputile_agent_gpu_memory_used_bytes"


def _rate(metric: str, where: str = "") -> str:
    return f"rate({metric}{where}[$__rate_interval])"


def _increase(metric: str, where: str) -> str:
    return f"increase({metric}{where}[$__rate_interval])"


def _quantile(part: float, metric: str, by: str, where: str = "") -> str:
    """Return a quantile of what was observed lately, and nothing where nothing was.

    The quantile of no observations is NaN (0/0), which no comparison lets pass; 0 would say that
    all was very fast.
    """
    labels = ", ".join(["le", *filter(None, [by])])
    return (
        f"histogram_quantile({part}, sum by ({labels}) ({_rate(f'{metric}_bucket', where)})) >= 0"
    )


_OF_NODE, _OF_NAMESPACE = '{node=~"$node"}', '{namespace=~"$namespace"}'
_CONTAINER = "{{namespace}}/{{pod}}/{{container}}"

CLUSTER: Final = Dashboard(
    "cluster",
    "gputile: cluster",
    (
        Panel(
            "GPU pods",
            "Pods that hold GPUs.",
            "short",
            {"": "max(gputile_ledger_bookings)"},
            stat=True,
        ),
        Panel(
            "Free GPUs",
            "GPUs without bookings on nodes that take pods.",
            "short",
            {"": "max(gputile_ledger_free_gpus)"},
            stat=True,
        ),
        Panel(
            "Largest free memory",
            "Of a single GPU on nodes that take pods.",
            "bytes",
            {"": "max(gputile_ledger_largest_free_memory_bytes)"},
            stat=True,
        ),
        Panel(
            "Fragmentation",
            "Part of the free memory that pods like the running ones cannot use.",
            "percentunit",
            {"": "max(gputile_ledger_fragmentation_ratio)"},
            stat=True,
        ),
        Panel(
            "Over-allocated GPUs",
            "GPUs with more booked than they have. This happens only if something else writes "
            "allocations.",
            "short",
            {"": "max(gputile_ledger_overallocated_gpus)"},
            stat=True,
        ),
        Panel(
            "Silent agents",
            "GPU nodes with the condition gputile.io/AgentSilent.",
            "short",
            {"": "max(gputile_controller_silent_nodes)"},
            stat=True,
        ),
        Panel(
            "GPU memory",
            "Total, booked by the kubelet's device IDs, and used. GPUs whose use is not measured "
            "are left out.",
            "bytes",
            {
                "total": f"sum({_measured('gputile_agent_gpu_memory_bytes')})",
                "booked": f"sum({_measured('gputile_agent_gpu_memory_booked_bytes')})",
                "used": "sum(gputile_agent_gpu_memory_used_bytes)",
            },
        ),
        Panel(
            "Free memory by free memory of the GPU",
            "Of GPUs with at least so many GiB free, and less than the next value.",
            "bytes",
            {"{{at_least_gib}} GiB": "max by (at_least_gib) (gputile_ledger_free_memory_bytes)"},
        ),
        Panel(
            "Pending GPU pods",
            "By reason.",
            "short",
            {"{{reason}}": f"sum by (reason) ({_active('gputile_extender_pending_pods')})"},
        ),
        Panel(
            "Longest wait",
            "The longest current wait of a pod or gang for GPUs; empty if none waits.",
            "s",
            {
                "pods: {{reason}}": "time() - max by (reason) "
                f"(({_active('gputile_extender_pending_since_timestamp_seconds')}) > 0)",
                "gangs": "time() - max(gputile_controller_gangs_waiting_since_timestamp_seconds > "
                "0)",
            },
        ),
        Panel(
            "Gangs",
            "By state.",
            "short",
            {"{{state}}": "sum by (state) (gputile_controller_gangs)"},
        ),
        Panel(
            "Time to answer kube-scheduler",
            "The 99th percentile of each verb; empty if there were no calls.",
            "s",
            {"{{verb}}": _quantile(0.99, "gputile_extender_request_seconds", "verb")},
        ),
        Panel(
            "From creation to Binding",
            "The wait of recently bound pods; empty if there were none.",
            "s",
            {
                "half within": _quantile(0.5, "gputile_extender_pod_wait_seconds", ""),
                "95 % within": _quantile(0.95, "gputile_extender_pod_wait_seconds", ""),
            },
        ),
        Panel(
            "Calls of kube-scheduler",
            "By verb and outcome.",
            "reqps",
            {
                "{{verb}} {{outcome}}": f"sum by (verb, outcome) "
                f"({_rate('gputile_extender_requests_total')})"
            },
        ),
        Panel(
            "Reviews of the webhook",
            "By outcome.",
            "reqps",
            {
                "{{outcome}}": "sum by (outcome) "
                "(rate(gputile_webhook_reviews_total[$__rate_interval]))"
            },
        ),
        Panel(
            "Certificate of the webhook",
            "Time until the first certificate expires.",
            "s",
            {"left": "min(gputile_webhook_certificate_expiry_timestamp_seconds > 0) - time()"},
        ),
        Panel(
            "Nodes by mode",
            "The mode in force.",
            "short",
            {"{{mode}}": "count by (mode) (gputile_agent_node_info)"},
        ),
    ),
    {},
)

NODE: Final = Dashboard(
    "node",
    "gputile: node",
    (
        Panel(
            "Mode",
            "Mode, memory unit and policy of GPU time in force.",
            "short",
            {
                "{{node}}: {{mode}}, {{unit_mib}} MiB, {{gpu_time_policy}}": f"gputile_agent_node_info{_OF_NODE}"
            },
        ),
        Panel(
            "Unhealthy GPUs",
            "GPUs that no new pod may use.",
            "short",
            {"{{node}}": f"sum by (node) (1 - gputile_agent_gpu_healthy{_OF_NODE})"},
        ),
        Panel(
            "Memory booked",
            "Of each GPU, by the kubelet's device IDs.",
            "percentunit",
            {
                "{{node}} {{gpu}}": f"gputile_agent_gpu_memory_booked_bytes{_OF_NODE} "
                f"/ gputile_agent_gpu_memory_bytes{_OF_NODE}"
            },
        ),
        Panel(
            "Memory used",
            "Of each GPU, as NVML reports it.",
            "percentunit",
            {
                "{{node}} {{gpu}}": f"gputile_agent_gpu_memory_used_bytes{_OF_NODE} "
                f"/ gputile_agent_gpu_memory_bytes{_OF_NODE}"
            },
        ),
        Panel(
            "Utilization",
            "Part of the time in which a kernel ran on the GPU.",
            "percentunit",
            {"{{node}} {{gpu}}": f"gputile_agent_gpu_utilization_ratio{_OF_NODE}"},
        ),
        Panel(
            "Compute booked",
            "Of each GPU.",
            "percentunit",
            {"{{node}} {{gpu}}": f"gputile_agent_gpu_compute_booked_ratio{_OF_NODE}"},
        ),
        Panel(
            "Temperature",
            "Of each GPU.",
            "celsius",
            {"{{node}} {{gpu}}": f"gputile_agent_gpu_temperature_celsius{_OF_NODE}"},
        ),
        Panel(
            "Power",
            "Of each GPU.",
            "watt",
            {"{{node}} {{gpu}}": f"gputile_agent_gpu_power_watts{_OF_NODE}"},
        ),
        Panel(
            "ECC errors",
            "New errors, by kind.",
            "short",
            {
                "{{node}} {{gpu}} {{kind}}": _increase(
                    "gputile_agent_gpu_ecc_errors_total", _OF_NODE
                ),
            },
        ),
        Panel(
            "XIDs",
            "Errors that the driver reported since the agent's start, by code.",
            "short",
            {"{{node}} {{gpu}} XID {{xid}}": f"gputile_agent_gpu_xids_total{_OF_NODE}"},
        ),
        Panel(
            "Pods",
            "On each GPU.",
            "short",
            {"{{node}} {{gpu}}": f"gputile_agent_gpu_pods{_OF_NODE}"},
        ),
        Panel(
            "Time to answer the kubelet",
            "The 99th percentile of each call.",
            "s",
            {"{{call}}": _quantile(0.99, "gputile_agent_call_seconds", "call", _OF_NODE)},
        ),
        Panel(
            "Ledger and kubelet",
            "Allocations corrected and recorded, and calls of the kubelet refused.",
            "short",
            {
                "{{node}} corrected": _increase(
                    "gputile_agent_allocations_corrected_total", _OF_NODE
                ),
                "{{node}} recorded": _increase(
                    "gputile_agent_allocations_recorded_total", _OF_NODE
                ),
                "{{node}} refused": _increase(
                    "gputile_agent_kubelet_calls_refused_total", _OF_NODE
                ),
            },
        ),
        Panel(
            "Agents started",
            "Starts of the agent behind its gateway.",
            "short",
            {"{{node}}": f"gputile_agent_starts_total{_OF_NODE}"},
        ),
    ),
    {"node": "gputile_agent_node_info"},
)

NAMESPACE: Final = Dashboard(
    "namespace",
    "gputile: namespace",
    (
        Panel(
            "Memory booked and used",
            "GPU memory allocated to its pods, by the kubelet's device IDs, and what they use, if "
            "it is measured.",
            "bytes",
            {
                "{{namespace}} booked": "sum by (namespace) "
                f"(gputile_agent_namespace_memory_booked_bytes{_OF_NAMESPACE})",
                "{{namespace}} used": f"sum by (namespace) "
                f"(gputile_agent_container_memory_used_bytes{_OF_NAMESPACE})",
            },
        ),
        Panel(
            "GPU time",
            "Average number of GPUs that the namespace's pods kept busy in their turns.",
            "short",
            {
                "{{namespace}}": "sum by (namespace) "
                f"(rate(gputile_agent_gpu_time_seconds_total{_OF_NAMESPACE}[$__rate_interval]))"
            },
        ),
        Panel(
            "Memory used by container",
            "Of each GPU.",
            "bytes",
            {
                f"{_CONTAINER} {{{{gpu}}}}": f"gputile_agent_container_memory_used_bytes{_OF_NAMESPACE}"
            },
        ),
        Panel(
            "Memory used of the limit",
            "Pods that stay far below 1 could ask for less.",
            "percentunit",
            {
                f"{_CONTAINER} {{{{gpu}}}}": f"gputile_agent_container_memory_used_bytes{_OF_NAMESPACE} "
                f"/ gputile_agent_container_memory_limit_bytes{_OF_NAMESPACE}"
            },
        ),
        Panel(
            "Peak of the limit",
            "The peak since the container's start.",
            "percentunit",
            {
                f"{_CONTAINER} {{{{gpu}}}}": f"gputile_agent_container_memory_peak_bytes{_OF_NAMESPACE} "
                f"/ gputile_agent_container_memory_limit_bytes{_OF_NAMESPACE}"
            },
        ),
        Panel(
            "GPU time by container",
            "Part of the GPU's time that the container held in its turns.",
            "percentunit",
            {
                f"{_CONTAINER} {{{{gpu}}}}": "rate(gputile_agent_gpu_time_seconds_total"
                f"{_OF_NAMESPACE}[$__rate_interval])"
            },
        ),
    ),
    {"namespace": "gputile_agent_container_memory_limit_bytes"},
)

ISOLATION: Final = Dashboard(
    "isolation",
    "gputile: isolation",
    (
        Panel(
            "Closest to their limit",
            "Containers by the part of their memory that they use.",
            "percentunit",
            {
                f"{_CONTAINER} {{{{gpu}}}}": "topk(20, gputile_agent_container_memory_used_bytes "
                "/ gputile_agent_container_memory_limit_bytes)"
            },
        ),
        Panel(
            "Requests for memory refused",
            "By the limit of the container.",
            "reqps",
            {
                f"{_CONTAINER} {{{{gpu}}}}": "topk(20, "
                "rate(gputile_agent_container_allocations_refused_total[$__rate_interval]))"
            },
        ),
        Panel(
            "Memory that no container counts",
            "Used on the GPU by the driver itself, and by processes that no container is known to "
            "run.",
            "bytes",
            {
                "{{node}} {{gpu}}": "gputile_agent_gpu_memory_used_bytes - on (node, gpu) "
                "(sum by (node, gpu) (gputile_agent_container_memory_used_bytes) "
                "or 0 * sum by (node, gpu) (gputile_agent_gpu_memory_used_bytes))"
            },
        ),
        Panel(
            "GPU time guaranteed",
            "To each container, of each GPU.",
            "percentunit",
            {f"{_CONTAINER} {{{{gpu}}}}": "gputile_agent_gpu_time_share_ratio"},
        ),
        Panel(
            "GPU time used, of the guaranteed time",
            "Above 1 the container used time that others left.",
            "percentunit",
            {
                f"{_CONTAINER} {{{{gpu}}}}": "rate(gputile_agent_gpu_time_seconds_total[$__rate_interval]) "
                "/ gputile_agent_gpu_time_share_ratio"
            },
        ),
        Panel(
            "Waiting for turns",
            "Part of the time in which the container had work and waited for the GPU.",
            "percentunit",
            {
                f"{_CONTAINER} {{{{gpu}}}}": "topk(20, rate(gputile_agent_gpu_wait_seconds_total[$__rate_interval]))"
            },
        ),
    ),
    {},
)

DASHBOARDS: Final = (CLUSTER, NODE, NAMESPACE, ISOLATION)


def rendered(dashboard: Dashboard) -> str:
    """Return a dashboard as Grafana imports it."""
    return json.dumps(_document(dashboard), indent=1) + "\n"


def _document(dashboard: Dashboard) -> dict[str, Any]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }
    chosen = [_variable(label, metric) for label, metric in dashboard.variables.items()]
    return {
        "uid": f"gputile-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["gputile"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, *chosen]},
        "panels": list(_placed(dashboard.panels)),
    }


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "definition": f"label_values({metric}, {label})",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
        "refresh": 2,
        "sort": 1,
    }


def _placed(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        width, tall = (_STAT_WIDTH, _STAT_HEIGHT) if panel.stat else (_WIDTH, _HEIGHT)
        if x + width > _COLUMNS or (x and tall != height):
            x, y = 0, y + height
        height = tall
        yield {
            "id": number,
            "type": "stat" if panel.stat else "timeseries",
            "title": panel.title,
            "description": panel.description,
            "datasource": _SOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": tall},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": "ABCDEF"[index],
                    "datasource": _SOURCE,
                    "expr": query,
                    "legendFormat": legend or "__auto",
                }
                for index, (legend, query) in enumerate(panel.queries.items())
            ],
        }
        x += width


def main() -> None:
    """Write all of them."""
    for dashboard in DASHBOARDS:
        (DIRECTORY / f"{dashboard.name}.json").write_text(rendered(dashboard), encoding="utf-8")


if __name__ == "__main__":
    main()
