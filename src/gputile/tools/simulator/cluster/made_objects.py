"""Lists what controllers make of objects beside their pods: claims, ReplicaSets, Jobs and revisions.

A ResourceQuota counts these. An ephemeral volume's claim is called POD-VOLUME, and one of a StatefulSet TEMPLATE-POD; a
claim of the set's that is there already is used, and an ephemeral volume only has a claim that was made for its pod.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gputile.api.core import Pod
from gputile.tools.simulator.documents.manifests import Manifest, ManifestError
from gputile.tools.simulator.rules.pods.volume_modes import used_otherwise

Json = Mapping[str, Any]
Made = tuple[Manifest, int]  # an object of a kind, and how many there are of it
Places = Mapping[tuple[str, str], Manifest]  # by namespace and name
_CLAIM: Final = "PersistentVolumeClaim"
# What a kind's controller makes of one object, whatever pods it has.
_ONE_EACH: Final = {
    "CronJob": ("batch/v1", "Job"),
    "DaemonSet": ("apps/v1", "ControllerRevision"),
    "Deployment": ("apps/v1", "ReplicaSet"),
    "StatefulSet": ("apps/v1", "ControllerRevision"),
}


def written_claims(manifests: Iterable[Manifest]) -> Places:
    """Return the claims among ``manifests``."""
    found = (each for each in manifests if (each.kind, each.api_version) == (_CLAIM, "v1"))
    places = ((each, each.body.get("metadata")) for each in found)
    named = ((each, metadata) for each, metadata in places if isinstance(metadata, dict))
    return {(metadata.get("namespace") or "default", str(metadata.get("name"))): each for each, metadata in named}


def made_once(owner: Manifest, namespace: str) -> Iterator[Made]:
    """Yield what is made of an object of one of Kubernetes' kinds, beside its pods and their claims."""
    made = _ONE_EACH.get(owner.kind)
    if made is not None and not (owner.kind == "CronJob" and owner.body.get("spec", {}).get("suspend")):
        yield _made(owner, *made, namespace), 1


def made_jobs(owner: Manifest, namespace: str, count: int) -> Made:
    """Return the Jobs that an object of another kind makes."""
    return _made(owner, "batch/v1", "Job", namespace), count


def made_claims(owner: Manifest, namespace: str, pods: Sequence[Pod], claims: Places) -> Iterator[Made]:
    """Yield the claims of a StatefulSet's ``pods`` that are not among ``claims``."""
    for each in _claim_templates(owner):
        name = each.get("metadata", {}).get("name", "")
        there = sum((namespace, f"{name}-{pod.metadata.name}") in claims for pod in pods) if claims else 0
        yield _made(owner, "v1", _CLAIM, namespace, each.get("spec", {})), len(pods) - there


def ephemeral_claims(owner: Manifest, spec: Json, pods: Sequence[Pod]) -> Iterator[Made]:
    """Yield the claims of ephemeral volumes; ``spec`` is that of the ``pods``, as it is written."""
    namespace = pods[0].metadata.namespace if pods else ""
    for each in spec.get("volumes", ()) if pods else ():
        if "ephemeral" in each:
            claim = each["ephemeral"].get("volumeClaimTemplate", {}).get("spec", {})
            yield _made(owner, "v1", _CLAIM, namespace, claim), len(pods)


def taken_claims(
    owner: Manifest, path: str, spec: Json, pods: Sequence[Pod], claims: Places
) -> Iterator[ManifestError]:
    """Yield which ephemeral volumes find a claim of their name that is not theirs, so that their pods wait for ever."""
    for i, each in enumerate(spec.get("volumes", ()) if claims else ()):
        for pod in pods if "ephemeral" in each else ():
            name = f"{pod.metadata.name}-{each['name']}"
            other = claims.get((pod.metadata.namespace, name))
            if other is not None:
                why = f"the pod {pod.key} waits for ever, since the claim {name} of {other.origin} is not its own"
                yield owner.origin.error(f"{path}.volumes[{i}].name", f"{why}: rename the volume or the claim")


def without_replaced(stateful_set: Json, template: Json) -> Json:
    """Return the template of a StatefulSet's spec without the volumes in whose place its claims come."""
    claims = {each.get("metadata", {}).get("name", "") for each in stateful_set.get("volumeClaimTemplates", ())}
    spec = template.get("spec", {})
    if claims.isdisjoint(each["name"] for each in spec.get("volumes", ())):
        return template
    return {**template, "spec": {**spec, "volumes": [each for each in spec["volumes"] if each["name"] not in claims]}}


def claims_used_otherwise(
    owner: Manifest, path: str, spec: Json, pods: Sequence[Pod], block_claims: Mapping[tuple[str, str], bool]
) -> Iterator[ManifestError]:
    """Yield where pods of the spec at ``path`` mount claims of blocks, or have files as devices.

    ``block_claims`` says of claims, by namespace and name, whether they are of blocks.
    """
    named = [
        (each["name"], each["persistentVolumeClaim"]["claimName"])
        for each in spec.get("volumes", ())
        if each.get("persistentVolumeClaim", {}).get("claimName")
    ]
    own = [each.get("metadata", {}).get("name", "") for each in _claim_templates(owner)]
    wrong: dict[tuple[str, str], None] = {}
    for pod in (pods if own else pods[:1]) if block_claims else ():
        claims = [*named, *((name, f"{name}-{pod.metadata.name}") for name in own)]
        places = ((volume, (pod.metadata.namespace, claim)) for volume, claim in claims)
        blocks = {volume: block_claims[place] for volume, place in places if place in block_claims}
        wrong |= dict.fromkeys(used_otherwise(path, spec, blocks))
    yield from (owner.origin.error(*each) for each in wrong)


def _claim_templates(owner: Manifest) -> Sequence[Json]:
    templates: Sequence[Json] = owner.body.get("spec", {}).get("volumeClaimTemplates", ())
    return templates if owner.kind == "StatefulSet" else ()


def _made(owner: Manifest, api_version: str, kind: str, namespace: str, spec: Json | None = None) -> Manifest:
    body = {"metadata": {"namespace": namespace}, "spec": dict(spec or {})}
    return Manifest(owner.origin, api_version, kind, body)
