"""The page by symptom has a row for each complaint of gputile, and names commands that exist."""

import re
from typing import Any

import msgspec
import pytest
from docs.generator.pages import DOCS

from gputile.api.workloads import DaemonSet, Deployment, Event, RunningPod
from gputile.tools.views.status import assess, table
from tests.unit.docs.named_commands import unknown_to_gputile

_PAGE = (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `(?P<name>[\w./]+)` \|(?P<rest>.*)\|$", re.MULTILINE)


def _rows(page: str) -> dict[str, str]:
    return {match["name"]: match["rest"] for match in _ROW.finditer((DOCS / "reference" / page).read_text("utf-8"))}


def test_each_warning_of_a_pod_has_a_row() -> None:
    warnings = [name for name, rest in _rows("events.md").items() if "Warning" in rest]
    assert warnings
    assert [name for name in warnings if f"`{name}`" not in _PAGE] == []


def test_each_condition_of_a_node_has_a_row() -> None:
    conditions = [name for name in _rows("events.md") if name.startswith("gputile.io/")]
    assert conditions
    assert [name for name in conditions if f"`{name}`" not in _PAGE] == []


def test_each_command_exists_with_its_options() -> None:
    assert unknown_to_gputile(_PAGE) == []


def _workload(kind: type[Deployment | DaemonSet], component: str, **status: Any) -> Deployment | DaemonSet:
    meta = {"name": f"gputile-{component}", "labels": {"app.kubernetes.io/component": component}, "generation": 1}
    return msgspec.convert({"metadata": meta, "status": {"observedGeneration": 1, **status}}, kind)


def _pod(component: str, **status: Any) -> RunningPod:
    meta = {"name": "p", "labels": {"app.kubernetes.io/component": component}}
    return msgspec.convert({"metadata": meta, "status": status}, RunningPod)


def _event(about: str, reason: str, message: str) -> Event:
    body = {"involvedObject": {"name": about}, "type": "Warning", "reason": reason, "message": message}
    return msgspec.convert(body, Event)


_AGENT = _workload(DaemonSet, "agent", desiredNumberScheduled=3, updatedNumberScheduled=3)
_WEBHOOK = _workload(Deployment, "webhook", replicas=1, updatedReplicas=1)
_PULL = {"name": "webhook", "state": {"waiting": {"reason": "ErrImagePull", "message": "401 Unauthorized"}}}
_FORBIDDEN = _event("gputile-agent", "FailedCreate", 'pods "gputile-agent-x" is forbidden: violates PodSecurity')
_UNREADY = _event("p", "Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
_HALF = _workload(DaemonSet, "agent", desiredNumberScheduled=3, updatedNumberScheduled=1)


@pytest.mark.requirement("U11")
@pytest.mark.parametrize(
    ("workload", "pods", "events", "said"),
    [
        (_WEBHOOK, [_pod("webhook", containerStatuses=[_PULL])], [], "ErrImagePull"),
        (_AGENT, [], [_FORBIDDEN], "violates PodSecurity"),
        (_WEBHOOK, [_pod("webhook")], [_UNREADY], "Readiness probe failed"),
        (_HALF, [], [], "pods are of the newest kind"),
    ],
    ids=["image", "pod-security", "rights", "half-upgraded"],
)
def test_what_status_says_of_a_bad_installation_is_on_the_page(
    workload: Deployment | DaemonSet, pods: list[RunningPod], events: list[Event], said: str
) -> None:
    assert said in _PAGE
    assert said in table(assess([workload], pods, events, [], 128))
