"""Makes the pods of one workload out of its template: names, UIDs, labels and owner.

The pods share the spec of the template: replace a spec to change it, and never write into it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gputile.api.core import ObjectMeta, OwnerReference, Pod, PodSpec
from gputile.tools.simulator.documents.generated_names import make_uid, suffixes
from gputile.tools.simulator.documents.manifests import Manifest
from gputile.tools.simulator.rules.workloads.controllers_labels import COMPLETION_INDEX, POD_INDEX, POD_NAME

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


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
