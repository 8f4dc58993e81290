"""What to do about a component follows from the cluster's own words, and nothing is said where they are not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.tools.views.rollout import remedy_of

pytestmark = pytest.mark.requirement("U11")

REFUSED = 'FailedCreate: Error creating: pods "gputile-agent-" is forbidden: '
NOT_STARTED = "pod gputile-agent-1: FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = "
SCOPES = "insufficient quota to match these scopes: [{PriorityClass In [system-node-critical system-cluster-critical]}]"
SIGNATURE = 'Source image rejected: None of the signatures were accepted for "example.com/gputile"'


def remedy(reason: str) -> str:
    return remedy_of(reason, "gpus", "daemonset/gputile-agent")


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        (f'{REFUSED}pod rejected: RuntimeClass "nvidia" not found', "agent.runtimeClassName"),
        (f'{NOT_STARTED}Unknown desc = no runtime for "nvidia" is configured', "agent.runtimeClassName"),
        (f"{NOT_STARTED}Unknown desc = failed to find runtime handler nvidia from runtime list", "runtimeClassName"),
        (f"{REFUSED}no PriorityClass with name critical was found", "priorityClassName"),
        (
            "pod p: container agent: CrashLoopBackOff; it ended with exit code 137 (OOMKilled)",
            "resources.limits.memory",
        ),
        ("pod p: Evicted: The node was low on resource: memory.", "kubectl describe node"),
        ("pod p: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu", "kubectl describe node"),
        (
            f"{REFUSED}maximum memory usage per Container is 100Mi, but limit is 256Mi",
            "LimitRange of the namespace gpus",
        ),
        (f"{REFUSED}[minimum cpu usage per Pod is 1, but request is 50m, x]", "LimitRange of the namespace gpus"),
        (f"{REFUSED}memory max limit to request ratio per Container is 1, but provided ratio is 4", "LimitRange"),
        (f"{REFUSED}exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0", "raise the ResourceQuota"),
        (f"{REFUSED}failed quota: q: must specify limits.cpu for: agent", "raise the ResourceQuota"),
        (f"{REFUSED}{SCOPES}", "criticalPodsQuota.enabled=true"),
        (f'{REFUSED}violates PodSecurity "restricted:latest": hostPath volumes', "enforce=privileged"),
        (
            f'{REFUSED}error looking up service account gpus/gputile-agent: serviceaccount "gputile-agent" not found',
            "helm upgrade",
        ),
        (
            'FailedCreate: admission webhook "validate.kyverno.svc-fail" denied the request: policy DaemonSet/x',
            "except the namespace gpus from the policy",
        ),
        (
            f"{REFUSED}ValidatingAdmissionPolicy 'no-host-path' with binding 'b' denied request: failed expression",
            "except the namespace gpus from the policy",
        ),
        (
            'FailedCreate: Internal error occurred: failed calling webhook "validate.kyverno.svc": refused',
            "bring that webhook back",
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
            "give the rights that it names back",
        ),
        (f"pod p: container agent: SignatureValidationFailed: {SIGNATURE}", "policy of signatures"),
        ("pod p: container agent: ImageInspectError: short-name resolution enforced", "image.repository and image.tag"),
        ("pod p: container kube-scheduler: ErrImagePull: not found", "scheduler.image.repository"),
    ],
)
def test_each_refusal_has_its_own_remedy(reason: str, helps: str) -> None:
    assert helps in remedy(reason)


@given(st.text(alphabet=st.characters(blacklist_characters='"{}'), max_size=60))
def test_being_forbidden_alone_is_no_lack_of_rights(why: str) -> None:
    """The API server forbids for many reasons: only its authorizer's words name a right that is not there."""
    assert "rights" not in remedy(f"{REFUSED}{why}")


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert remedy(f"{REFUSED}a plugin of a later version does not like it") == ""
