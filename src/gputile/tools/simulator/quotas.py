"""Whether the pods of the files ask for more than the ResourceQuotas in the files allow.

What else is in the cluster is not known, so this is what is exceeded in any case. A quota with scopes, and amounts that
are no requests of pods, are left out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from gputile.api.core import Pod
from gputile.api.quantity import parse_quantity
from gputile.api.wording import shown
from gputile.core.kube_predicates.pod_requests import CPU, PODS, pod_requests
from gputile.tools.simulator.manifests import Manifest, ManifestError

_PODS: Final = ("pods", "count/pods")
_ALONE: Final = (CPU, "memory", "ephemeral-storage")  # the same as with "requests." before them
_REQUESTS: Final = "requests."
_PER_CORE: Final = 1000


def has_scopes(manifest: Manifest) -> bool:
    """Return whether a valid ResourceQuota counts only some of the pods."""
    spec = manifest.body.get("spec", {})
    return bool(spec.get("scopes") or spec.get("scopeSelector", {}).get("matchExpressions"))


def exceeded(manifests: Iterable[Manifest], pods: Iterable[Pod]) -> Iterator[ManifestError]:
    """Yield which amounts of the ResourceQuotas among valid ``manifests`` the ``pods`` exceed."""
    quotas = [each for each in manifests if (each.kind, each.api_version) == ("ResourceQuota", "v1")]
    asked = _asked(pods) if quotas else {}
    for quota in quotas:
        namespace = quota.body["metadata"].get("namespace") or "default"
        used = asked.get(namespace, Counter())
        for name, written in ({} if has_scopes(quota) else quota.body.get("spec", {}).get("hard", {})).items():
            resource = _counted(name)
            most = parse_quantity(written) * (_PER_CORE if resource == CPU else 1)
            if resource and used[resource] > most:
                amount = f"{used[resource]}{'m' if resource == CPU else ''}"
                said = f"exceeded quota: the files' pods in {namespace} are {amount}, and may be {written}"
                if resource != PODS:
                    said = f"exceeded quota: the files' pods in {namespace} request {amount}, and may request {written}"
                yield quota.origin.error(f"spec.hard[{shown(name)}]", said)


def _asked(pods: Iterable[Pod]) -> dict[str, Counter[str]]:
    """Return what the pods take that are not finished, by namespace."""
    found: dict[str, Counter[str]] = {}
    for pod in pods:
        if not pod.finished:
            found.setdefault(pod.metadata.namespace, Counter()).update({**pod_requests(pod.spec), PODS: 1})
    return found


def _counted(name: str) -> str:
    """Return the resource that an amount of a quota bounds the requests of, "" where it bounds something else."""
    if name in _PODS:
        return PODS
    return name.removeprefix(_REQUESTS) if name.startswith(_REQUESTS) or name in _ALONE else ""
