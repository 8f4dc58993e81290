"""Says what to do about a component that is not ready, by what the cluster says about it (U11)."""

from typing import Final

# The first whose words are in the reason goes. `{namespace}` is the installation's, `{workload}` as kubectl names it.
_REMEDIES: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("FailedToRetrieveImagePullSecret",),
        "make that Secret (kubectl create secret docker-registry NAME --namespace {namespace} ...), or name another "
        "one in image.pullSecrets",
    ),
    (
        ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable"),
        "correct image.repository and image.tag by helm upgrade; if the registry asks who pulls, name a Secret in "
        "image.pullSecrets",
    ),
    (
        ("violates PodSecurity",),
        "kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged --overwrite",
    ),
    (("exceeded quota",), "raise the ResourceQuota of the namespace {namespace}, or set the component's resources"),
    (("forbidden",), "give the rights that it names back: helm upgrade writes the chart's own"),
    (
        ("CrashLoopBackOff", "RunContainerError"),
        "kubectl logs --namespace {namespace} {workload} --all-containers --previous",
    ),
    (("Unschedulable",), "make room for the pod, or set the component's tolerations, nodeSelector or resources"),
    (
        ("ProgressDeadlineExceeded",),
        "kubectl describe --namespace {namespace} {workload}; helm rollback goes back to what ran before",
    ),
)


def remedy_of(reason: str, namespace: str, workload: str) -> str:
    """Return what to do about ``reason``, "" where nothing is known.

    ``workload`` is the component's own object, as ``deployment/gputile-webhook``.
    """
    for words, remedy in _REMEDIES:
        if any(word in reason for word in words):
            return remedy.format(namespace=namespace, workload=workload)
    return ""
