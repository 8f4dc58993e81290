"""Says what to do about a component that is not ready, by what the cluster says about it (U11)."""

import re
from typing import Final

_NO_IMAGE: Final = (
    "ErrImagePull|ImagePullBackOff|ErrImageNeverPull|InvalidImageName|RegistryUnavailable|ImageInspectError"
)

# The first whose pattern is in the reason goes. `{namespace}` is the installation's, `{workload}` as kubectl names it.
# That a pod "is forbidden" says only that something at the API server refused it: what it was follows.
_REMEDIES: Final[tuple[tuple[str, str], ...]] = (
    (
        "FailedToRetrieveImagePullSecret",
        "make that Secret (kubectl create secret docker-registry NAME --namespace {namespace} ...), or name another "
        "one in image.pullSecrets",
    ),
    (
        "SignatureValidationFailed",
        "sign the image, or have the nodes' policy of signatures accept its registry",
    ),
    (
        f"container kube-scheduler: (?:{_NO_IMAGE})",
        "correct scheduler.image.repository and scheduler.image.tag by helm upgrade",
    ),
    (
        _NO_IMAGE,
        "correct image.repository and image.tag by helm upgrade; if the registry asks who pulls, name a Secret in "
        "image.pullSecrets",
    ),
    (
        "violates PodSecurity",
        "kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite",
    ),
    (
        "exceeded quota|failed quota",
        "raise the ResourceQuota of the namespace {namespace}, or set the component's resources",
    ),
    (
        "insufficient quota to match these scopes",
        "set criticalPodsQuota.enabled=true by helm upgrade: its ResourceQuota admits pods of these priorities",
    ),
    (
        r"(?:minimum|maximum) \S+ usage per [A-Z]|max limit to request ratio per [A-Z]",
        "change the LimitRange of the namespace {namespace}, or set the component's resources",
    ),
    (
        r'RuntimeClass "[^"]*" not found|no runtime for "|failed to find runtime handler',
        "set up that container runtime and its RuntimeClass, or correct agent.runtimeClassName by helm upgrade",
    ),
    (
        "no PriorityClass with name",
        "make that PriorityClass, or correct the component's priorityClassName by helm upgrade",
    ),
    (
        r'admission webhook "[^"]*" denied|ValidatingAdmissionPolicy .* denied request',
        "except the namespace {namespace} from the policy that it names, or have the policy allow the pod",
    ),
    (
        'failed calling webhook "',
        "bring that webhook back, or have it leave the namespace {namespace} alone",
    ),
    (
        r"\b(?:serviceaccount|configmap|secret) \"[^\"]*\" not found",
        "put that object back: helm upgrade writes the chart's own",
    ),
    (
        'User "[^"]*" cannot ',
        "give the rights that it names back: helm upgrade writes the chart's own",
    ),
    (
        r"\(OOMKilled\)",
        "raise the component's resources.limits.memory by helm upgrade: the node ended it, as it had no more",
    ),
    (
        r": (?:Evicted|OutOf\w+|NodeLost|Terminated|NodeShutdown|Preempting): ",
        "see that its node has room (kubectl describe node), or set the component's resources or nodeSelector; then "
        "kubectl delete --namespace {namespace} the pod that is named",
    ),
    (
        "CrashLoopBackOff|RunContainerError",
        "kubectl logs --namespace {namespace} {workload} --all-containers --previous",
    ),
    ("Unschedulable", "make room for the pod, or set the component's tolerations, nodeSelector or resources"),
    ("scaled to 0 pods", "kubectl scale --namespace {namespace} {workload} --replicas=2, or helm upgrade"),
    (
        "no node is for it",
        "where one should be: correct the component's nodeSelector, nodeSelectorTerms or tolerations by helm upgrade",
    ),
    ("FailedMount", "see that the volume is there: kubectl describe --namespace {namespace} {workload} lists them"),
    (
        "ProgressDeadlineExceeded",
        "kubectl describe --namespace {namespace} {workload}; helm rollback goes back to what ran before",
    ),
)


def remedy_of(reason: str, namespace: str, workload: str) -> str:
    """Return what to do about ``reason``, "" where nothing is known.

    ``workload`` is the component's own object, as ``deployment/gputile-webhook``.
    """
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, reason):
            return remedy.format(namespace=namespace, workload=workload)
    return ""
