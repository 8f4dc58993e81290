"""Makes the pods of a workload from its template: names, UIDs, owner, and controller labels.

Affinities and topology spread refer to these labels, so a rule on a Job's name or a set's index means the same here.
Source: k8s.io/api (apps/v1, batch/v1, types.go) for the names; registry/batch/job/strategy.go, controller/job,
controller/statefulset, controller/daemon and controller/deployment of k8s.io/kubernetes for who sets them.

The pods share the spec of the template: replace a spec to change it, and never write into it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from gputile.api.core import ObjectMeta, OwnerReference, Pod, PodSpec
from gputile.tools.simulator.manifests import Manifest
from gputile.tools.simulator.names import make_uid, revision, suffixes

TEMPLATE_HASH: Final = "pod-template-hash"  # Deployment
REVISION_HASH: Final = "controller-revision-hash"  # StatefulSet, DaemonSet
TEMPLATE_GENERATION: Final = "pod-template-generation"  # DaemonSet
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"  # StatefulSet
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"  # Indexed Job: a label, and an annotation
REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"  # PyTorchJob and its like
JOB_NAMES: Final = ("job-name", "batch.kubernetes.io/job-name")
JOB_UIDS: Final = ("controller-uid", "batch.kubernetes.io/controller-uid")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def common_labels(kind: str, owner: ObjectMeta, template: Pod, manual_selector: bool) -> dict[str, str]:
    """Return the labels of every pod of a workload: those of its template, and those of its controller.

    A Job that selects its pods by hand (``manual_selector``) gives them no labels of its own. A CronJob's pods have
    those of the Job that it makes.
    """
    labels = dict(template.metadata.labels)
    digest = revision(msgspec.json.encode(template))
    if kind == "Deployment":
        labels[TEMPLATE_HASH] = digest
    elif kind == "StatefulSet":
        labels[REVISION_HASH] = f"{owner.name}-{digest}"
    elif kind == "DaemonSet":
        labels |= {REVISION_HASH: digest, TEMPLATE_GENERATION: "1"}
    elif kind == "Job" and not manual_selector:
        return _of_job(owner.name, owner.uid, labels)
    elif kind == "CronJob" and not manual_selector:
        name = f"{owner.name}-{int(digest.encode().hex(), 16) % 10**8:08}"  # a cluster writes the minutes since 1970
        return _of_job(name, make_uid("Job", owner.namespace, name), labels)
    return labels


def _of_job(name: str, uid: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return a Job's labels; the labels of its template take precedence."""
    return dict.fromkeys(JOB_NAMES, name) | dict.fromkeys(JOB_UIDS, uid) | dict(labels)


class PodMaker:
    """Makes the pods of one workload, ``manifest``, out of its template."""

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
        """Return the pod called ``name``; its own labels and annotations go before those that all pods have."""
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
        """Return the pod number ``number``, its name ending in five characters."""
        return self.pod(f"{self.name}-{self._suffix(number)}", spec)

    def indexed(self, index: int) -> Pod:
        """Return the pod of an Indexed Job that does the part ``index``."""
        said = {COMPLETION_INDEX: str(index)}
        return self.pod(f"{self.name}-{index}-{self._suffix(index)}", labels=said, annotations=said)

    def numbered(self, ordinal: int) -> Pod:
        """Return the pod of a StatefulSet with the number ``ordinal``."""
        name = f"{self.name}-{ordinal}"
        return self.pod(name, labels={POD_NAME: name, POD_INDEX: str(ordinal)})
