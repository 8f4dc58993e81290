"""Generates what a cluster generates: names, UIDs, and the pods of a template with their labels.

Every run generates the same values. Pods get the labels that controllers set, since affinities and topology spread may
select pods by them, for example by a Job's name or a StatefulSet's pod index.
Sources: k8s.io/api (apps/v1, batch/v1, types.go) for the label names; registry/batch/job/strategy.go, controller/job,
controller/statefulset, controller/daemon and controller/deployment of k8s.io/kubernetes for which controller sets them.

The pods share the template's spec: replace the spec to change it, never modify it in place.
"""

import hashlib
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from gputile.api.core import ObjectMeta, OwnerReference, Pod, PodSpec
from gputile.api.wording import broken_subdomain
from gputile.tools.simulator.manifests import Manifest, Origin

TEMPLATE_HASH: Final = "pod-template-hash"  # Deployment
REVISION_HASH: Final = "controller-revision-hash"  # StatefulSet, DaemonSet
TEMPLATE_GENERATION: Final = "pod-template-generation"  # DaemonSet
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"  # StatefulSet
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"  # Indexed Job: a label, and an annotation
JOB_NAMES: Final = ("job-name", "batch.kubernetes.io/job-name")
JOB_UIDS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own for generated names: no vowels, no look-alikes
_SUFFIXES = len(_ALPHABET) ** 5
_LONGEST_PREFIX = 58  # characters of a generateName that the API server keeps
_UIDS = uuid.uuid5(uuid.NAMESPACE_DNS, "gputile.io")


def make_uid(kind: str, namespace: str, name: str) -> str:
    """Return a UID for an object without one; it depends only on kind, namespace and name."""
    return str(uuid.uuid5(_UIDS, f"{kind}/{namespace}/{name}"))


def suffixes(seed: str) -> Callable[[int], str]:
    """Return a function that maps a pod's number to a suffix of five characters, different for each number."""
    digest = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "big")
    offset, step = digest % _SUFFIXES, digest // _SUFFIXES % _SUFFIXES
    step += step % 3 == 0  # coprime to 27**5, so that every number gets its own suffix

    def suffix(number: int) -> str:
        value, text = (offset + number * step) % _SUFFIXES, ""
        for _ in range(5):
            value, digit = divmod(value, len(_ALPHABET))
            text += _ALPHABET[digit]
        return text

    return suffix


def generated_name(prefix: str, seed: str) -> str:
    """Return the name that an object without one gets from ``prefix``, its ``generateName``."""
    return prefix[:_LONGEST_PREFIX] + suffixes(seed)(0)


def revision(content: bytes) -> str:
    """Return the substitute for a template's hash in names and labels: ten characters of a hash of ``content``."""
    return hashlib.sha256(content).hexdigest()[:10]


def make_gpu_uuid(node: str, index: int) -> str:
    """Return the UUID of a described node's GPU in NVIDIA's format; it depends only on node and index."""
    return f"GPU-{uuid.uuid5(_UIDS, f'GPU/{node}/{index}')}"


def check_name(origin: Origin, path: str, name: str) -> None:
    """Check that Kubernetes accepts ``name`` for an object.

    Raises:
        ManifestError: the name is invalid.
    """
    if why := broken_subdomain(name):
        raise origin.error(path, why)


def common_labels(kind: str, owner: ObjectMeta, template: Pod) -> dict[str, str]:
    """Return the labels that all pods of a workload have: those of the template and those that controllers add.

    For a CronJob, they include the labels of its Job.
    """
    labels, digest = dict(template.metadata.labels), revision(msgspec.json.encode(template))
    if kind == "Deployment":
        return labels | {TEMPLATE_HASH: digest}
    if kind == "StatefulSet":
        return labels | {REVISION_HASH: f"{owner.name}-{digest}"}
    if kind == "DaemonSet":
        return labels | {REVISION_HASH: digest, TEMPLATE_GENERATION: "1"}
    if kind in ("Job", "CronJob"):
        name = owner.name if kind == "Job" else f"{owner.name}-00000000"  # a real suffix is the minutes since 1970
        uid = owner.uid if kind == "Job" else make_uid("Job", owner.namespace, name)
        return dict.fromkeys(JOB_NAMES, name) | dict.fromkeys(JOB_UIDS, uid) | labels
    return labels


class PodMaker:
    """Creates the pods of one workload, ``manifest``, from its template."""

    def __init__(self, manifest: Manifest, owner: ObjectMeta, template: Pod, labels: dict[str, str]) -> None:
        self.name = owner.name
        self.template = template
        self._labels = labels
        self._namespace = owner.namespace
        kind, version = manifest.kind, manifest.api_version
        self._owners = (
            OwnerReference(api_version=version, kind=kind, name=owner.name, uid=owner.uid, controller=True),
        )
        self._suffix = suffixes(owner.uid)

    def pod(
        self,
        name: str,
        spec: PodSpec | None = None,
        labels: Mapping[str, str] = _NOTHING,
        annotations: Mapping[str, str] = _NOTHING,
    ) -> Pod:
        """Return the pod ``name``; ``labels`` and ``annotations`` override those that all pods have."""
        meta = self.template.metadata
        metadata = ObjectMeta(
            name=name,
            namespace=self._namespace,
            uid=make_uid("Pod", self._namespace, name),
            labels={**self._labels, **labels} if labels else self._labels,
            annotations={**meta.annotations, **annotations} if annotations else meta.annotations,
            owner_references=self._owners,
        )
        return Pod(metadata=metadata, spec=spec or self.template.spec)

    def generated(self, number: int, spec: PodSpec | None = None) -> Pod:
        """Return pod ``number``, with a name that ends in five generated characters."""
        return self.pod(f"{self.name}-{self._suffix(number)}", spec)

    def indexed(self, index: int) -> Pod:
        """Return the pod of an Indexed Job with the completion index ``index``."""
        said = {COMPLETION_INDEX: str(index)}
        return self.pod(f"{self.name}-{index}-{self._suffix(index)}", labels=said, annotations=said)

    def numbered(self, ordinal: int) -> Pod:
        """Return the pod of a StatefulSet with this ordinal."""
        name = f"{self.name}-{ordinal}"
        return self.pod(name, labels={POD_NAME: name, POD_INDEX: str(ordinal)})
