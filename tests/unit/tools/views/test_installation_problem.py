"""What is wrong with an installation as a whole is named: the object, the rule, and what to do."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.workloads import Deployment, HelmRevision, Lease, RunningPod, ServiceAccount, WebhookConfiguration
from gputile.tools.views.installation_problems import (
    InstallationProblem,
    missing_components,
    other_extenders,
    unfinished_releases,
)
from gputile.tools.views.rollout import RolloutState, remedy_of
from gputile.tools.views.status import RolloutPhase, Traces, assess, table, traces_of, with_problems

pytestmark = pytest.mark.requirement("U11")


READY = {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}


def deployment(component: str) -> Deployment:
    labels = {"app.kubernetes.io/component": component}
    meta = {"name": f"gputile-{component}", "namespace": "gpus", "labels": labels, "generation": 1}
    return msgspec.convert({"metadata": meta, "status": READY}, Deployment)


def revision(number: int, status: str, name: str = "gputile") -> HelmRevision:
    labels = {"owner": "helm", "name": name, "version": str(number), "status": status}
    return msgspec.convert(
        {"metadata": {"name": f"sh.helm.release.v1.{name}.v{number}", "labels": labels}}, HelmRevision
    )


def pod(name: str, phase: str = "Running") -> RunningPod:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "kube-system"}, "status": {"phase": phase}}, RunningPod
    )


DEPLOYED = assess([deployment("webhook")], [], [], [], 1024)


def phase_with(problems: list[InstallationProblem]) -> RolloutPhase:
    return with_problems(DEPLOYED, problems).phase


@pytest.mark.parametrize(
    ("statuses", "phase", "rule", "remedy"),
    [
        (["superseded", "failed"], RolloutPhase.FAILED, "revision 2 failed", "helm rollback gputile --namespace gpus"),
        (["failed"], RolloutPhase.FAILED, "revision 1 failed", "helm uninstall gputile --namespace gpus"),
        (["deployed", "pending-upgrade"], RolloutPhase.DEPLOYING, "the upgrade to revision 2", "helm rollback"),
        (["deployed", "pending-rollback"], RolloutPhase.DEPLOYING, "the rollback to revision 2", "helm rollback"),
        (["pending-install"], RolloutPhase.DEPLOYING, "the installation of revision 1", "helm uninstall"),
        (["superseded", "uninstalling"], RolloutPhase.FAILED, "begun to remove revision 2", "helm uninstall"),
    ],
)
def test_what_helm_did_not_end_is_named(statuses: list[str], phase: RolloutPhase, rule: str, remedy: str) -> None:
    revisions = [revision(number, status) for number, status in enumerate(statuses, 1)]
    (problem,) = unfinished_releases(revisions, ["gputile"], "gpus")
    assert problem.object == "Helm release gputile"
    assert rule in problem.rule
    assert remedy in problem.remedy
    assert phase_with([problem]) is phase


@pytest.mark.parametrize(
    ("revisions", "names"),
    [
        ([revision(1, "failed"), revision(2, "deployed")], ["gputile"]),
        ([revision(9, "failed"), revision(10, "deployed")], ["gputile"]),
        ([revision(2, "failed", "another")], ["gputile"]),
        ([revision(1, "deployed"), revision(2, "a-state-of-a-later-helm")], ["gputile"]),
        ([msgspec.convert({"metadata": {"labels": {"version": "x", "status": "failed"}}}, HelmRevision)], [""]),
        ([], ["gputile"]),
    ],
)
def test_only_the_latest_revision_of_our_own_release_counts(revisions: list[HelmRevision], names: list[str]) -> None:
    assert unfinished_releases(revisions, names, "gpus") == []


def account(component: str, **more: str) -> ServiceAccount:
    meta = {"name": f"gputile-{component}", "labels": {"app.kubernetes.io/component": component}, **more}
    return msgspec.convert({"metadata": meta}, ServiceAccount)


@pytest.mark.parametrize("accounts", [[], [account("scheduler")]], ids=["pruned", "deleted"])
def test_a_scheduler_that_admission_gives_pods_to_has_to_be_there(accounts: list[ServiceAccount]) -> None:
    (problem,) = missing_components([deployment("webhook")], accounts, "gputile-scheduler")
    assert problem.object == "scheduler"
    assert missing_components([deployment("scheduler")], accounts, "gputile-scheduler") == []


@pytest.mark.parametrize(
    ("workloads", "accounts", "scheduler"),
    [
        ([deployment("webhook")], [], ""),
        ([deployment("webhook")], [account("agent", deletionTimestamp="2026-01-01T00:00:00Z")], ""),
        ([deployment("webhook")], [msgspec.convert({"metadata": {"name": "theirs"}}, ServiceAccount)], ""),
        ([], [account("agent")], "gputile-scheduler"),
    ],
    ids=["not-readable", "being-removed", "without-label", "not-installed"],
)
def test_nothing_is_missing_that_nothing_asks_for(
    workloads: list[Deployment], accounts: list[ServiceAccount], scheduler: str
) -> None:
    assert missing_components(workloads, accounts, scheduler) == []


def test_another_extender_is_named_and_hinders_no_component() -> None:
    problems = other_extenders([pod("gpushare-schd-extender-x"), pod("done", "Succeeded")])
    assert [problem.object for problem in problems] == ["pod kube-system/gpushare-schd-extender-x"]
    assert phase_with(problems) is RolloutPhase.DEPLOYED
    told = table(with_problems(DEPLOYED, problems))
    assert told.startswith("gputile: Deployed\n")
    assert "another extender runs there" in told


@given(st.lists(st.sampled_from(RolloutState), max_size=3), st.sampled_from(RolloutPhase))
def test_an_installation_is_no_further_than_its_worst_problem(states: list[RolloutState], phase: RolloutPhase) -> None:
    """What is not installed stays so, and a failure never looks better."""
    order = [RolloutPhase.FAILED, RolloutPhase.DEPLOYING, RolloutPhase.DEPLOYED]
    problems = [InstallationProblem("o", "r", "m", state) for state in states]
    found = with_problems(msgspec.structs.replace(DEPLOYED, phase=phase), problems)
    if phase not in order:
        assert found.phase is phase
    else:
        allowed = [RolloutState.FAILED, RolloutState.DEPLOYING, RolloutState.READY]
        assert order.index(found.phase) == min(order.index(phase), *map(allowed.index, states), 2)
    assert found.problems == problems


REFUSED = 'FailedCreate: Error creating: pods "gputile-agent-" is forbidden: '
SCOPES = "insufficient quota to match these scopes: [{PriorityClass In [system-node-critical system-cluster-critical]}]"
SIGNATURE = 'Source image rejected: None of the signatures were accepted for "example.com/gputile"'


def remedy(reason: str) -> str:
    return remedy_of(reason, "gpus", "daemonset/gputile-agent")


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        (f'{REFUSED}pod rejected: RuntimeClass "nvidia" not found', "agent.runtimeClassName"),
        (f"{REFUSED}no PriorityClass with name critical was found", "priorityClassName"),
        (
            "pod p: container agent: CrashLoopBackOff; it ended with exit code 137 (OOMKilled)",
            "resources.limits.memory",
        ),
        ("pod p: Evicted: The node was low on resource: memory.", "kubectl describe node"),
        (
            f"{REFUSED}maximum memory usage per Container is 100Mi, but limit is 256Mi",
            "LimitRange of the namespace gpus",
        ),
        (f"{REFUSED}exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0", "raise the ResourceQuota"),
        (f"{REFUSED}{SCOPES}", "criticalPodsQuota.enabled=true"),
        (f'{REFUSED}violates PodSecurity "restricted:latest": hostPath volumes', "enforce=privileged"),
        (
            f'{REFUSED}error looking up service account gpus/gputile-agent: serviceaccount "gputile-agent" not found',
            "helm upgrade",
        ),
        (
            'FailedCreate: admission webhook "validate.kyverno.svc-fail" denied the request: policy DaemonSet/x',
            "exclude the namespace gpus from the policy",
        ),
        (
            f"{REFUSED}ValidatingAdmissionPolicy 'no-host-path' with binding 'b' denied request: failed expression",
            "exclude the namespace gpus from the policy",
        ),
        (
            'FailedCreate: Internal error occurred: failed calling webhook "validate.kyverno.svc": refused',
            "repair that webhook",
        ),
        (
            'pod p: FailedMount: MountVolume.SetUp failed for volume "configuration" : configmap "gputile" not found',
            "helm upgrade",
        ),
        (
            'pod p: FailedMount: MountVolume.SetUp failed for volume "pods" : hostPath type check failed: /x is not a '
            "directory",
            "kubectl describe --namespace gpus daemonset/gputile-agent",
        ),
        (
            'pod p: container webhook: CreateContainerConfigError: secret "gputile-webhook" not found',
            "helm upgrade",
        ),
        (
            'pod p: secrets "gputile-webhook" is forbidden: User "system:serviceaccount:gpus:gputile-webhook" cannot '
            'get resource "secrets" in API group "" in the namespace "gpus"',
            "restore the rights that it names",
        ),
        (f"pod p: container agent: SignatureValidationFailed: {SIGNATURE}", "signature policy"),
        ("pod p: container agent: ImageInspectError: short-name resolution enforced", "image.repository and image.tag"),
        ("pod p: container kube-scheduler: ErrImagePull: not found", "scheduler.image.repository"),
    ],
)
def test_each_refusal_has_its_own_remedy(reason: str, helps: str) -> None:
    assert helps in remedy(reason)


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert remedy(f"{REFUSED}a plugin of a later version does not like it") == ""


NOON = datetime(2026, 7, 1, 12, tzinfo=UTC).timestamp()


def lease(name: str, holder: str | None, renewed: str = "2026-07-01T12:00:00.000000Z") -> Lease:
    spec = {"holderIdentity": holder, "renewTime": renewed}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Lease)


def configuration(*webhooks: dict[str, Any]) -> WebhookConfiguration:
    return msgspec.convert({"metadata": {"name": "gputile"}, "webhooks": list(webhooks)}, WebhookConfiguration)


def webhook(namespace: str, name: str = "gpu-pods.gputile.io") -> dict[str, Any]:
    return {"name": name, "clientConfig": {"service": {"namespace": namespace, "name": "gputile-webhook"}}}


def test_leases_that_somebody_holds() -> None:
    """One that was released or is not renewed is of a program that has ended, and other Leases are of others."""
    leases = [lease("gputile-controller", "controller"), lease("gputile-extender", ""), lease("other", "x")]
    seen = ["controller holds the Lease gputile-controller"]
    assert traces_of(leases, [], "gputile", NOON) == Traces(here=seen, running=True)
    assert traces_of(leases, [], "gputile", NOON + 3600) == Traces()
    assert traces_of([lease("gputile-extender", None)], [], "gputile", NOON) == Traces()


def test_a_webhook_that_the_api_server_asks() -> None:
    found = [configuration(webhook("gputile"), webhook("gputile")), configuration(webhook("gputile", "x.example.com"))]
    assert traces_of([], found, "gputile", NOON) == Traces(here=["the webhook configuration gputile exists"])
    assert traces_of([], found, "default", NOON) == Traces(elsewhere=["gputile"])
