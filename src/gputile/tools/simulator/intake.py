"""Validates the fields of objects and admits pods, as the API server would do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from gputile.api.core import Node, Pod
from gputile.api.quantity import count_of
from gputile.api.well_known import GPU_MEMORY, SMALLEST_UNIT_MIB
from gputile.api.wording import memory_text
from gputile.core.devices.request import RequestError, RequestKind, parse_request
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.claims import KnownClaims
from gputile.tools.simulator.described_nodes import inventory_of
from gputile.tools.simulator.fields import (
    Broken,
    Json,
    MistypedResources,
    UnknownFields,
    broken_amounts,
    mistyped_mode,
)
from gputile.tools.simulator.foreign_words import foreign_notes, foreign_requests
from gputile.tools.simulator.manifests import Manifest, ManifestError, Note, Origin
from gputile.tools.simulator.pod_kinds import PodKinds, known_kinds

MISSING: Final = "Required value"
MOST_OF_AN_OBJECT: Final = 20
_USUAL_UNITS: Final = (1024, 128, 1)  # memory units in MiB that users may have meant


@dataclass(frozen=True, slots=True)
class Intake:
    """The settings for the validation and admission of objects."""

    admission: Admission = field(default_factory=Admission)
    kinds: PodKinds = field(default_factory=known_kinds)  # kinds that Kubernetes does not define
    unknown_fields: UnknownFields = UnknownFields.REFUSED
    ignore_unknown: bool = False  # whether to ignore objects of unknown kinds
    # Objects that an API server has accepted in a dry run. Their unknown fields are ignored.
    accepted: frozenset[Origin] = frozenset()
    claims: KnownClaims = field(default_factory=KnownClaims)  # the claims that pods may reference
    # The advice in the error for an object of an unknown kind.
    kinds_hint: str = (
        "--kinds FILE says where the templates are, and --ignore-unknown ignores the object"
    )


class IntakeChecks:
    """Validates objects and pods, and appends to ``notes`` what was simplified or omitted."""

    def __init__(self, intake: Intake, nodes: Sequence[Node], notes: list[Note]) -> None:
        self._intake = intake
        self._nodes = nodes
        self._notes = notes
        self._mistyped = MistypedResources(nodes)

    def template(self, origin: Origin, path: str, template: Json, namespace: str) -> Pod:
        """Return the admitted pod of a template. All pods of the template share this object.

        Raises:
            ManifestError: the template has no containers, or its pods are refused.
        """
        metadata = template.get("metadata", {}) | {"namespace": namespace}
        return self.admit(origin, path, {"metadata": metadata, "spec": template.get("spec")})

    def admit(self, origin: Origin, path: str, pod: Json) -> Pod:
        """Admit a pod, and return the result. ``path`` is the path of its template, if any.

        Raises:
            ManifestError: the pod has no containers, is refused, or sets ``spec.nodeName``.
        """
        prefix, spec = f"{path}." if path else "", pod.get("spec")
        if not spec or not spec.get("containers"):
            raise origin.error(f"{prefix}spec.containers", MISSING)
        pod = self._with_usable_claims(origin, f"{prefix}spec.resourceClaims", pod)
        self._refuse_foreign_requests(origin, path, pod)
        admitted = self._intake.admission.admit(origin, path, pod, self._notes)
        if broken := [origin.error(*each) for each in broken_amounts(f"{prefix}spec", spec)]:
            raise ManifestError("\n".join(map(str, broken[:MOST_OF_AN_OBJECT])))
        self._notes += (Note(each, origin) for each in self._mistyped.in_spec(prefix, spec))
        if node := admitted.spec.node_name:
            rule = (
                f"the pod bypasses kube-scheduler, so whether it fits {node} is not checked: "
                "use nodeSelector"
            )
            raise origin.error(f"{prefix}spec.nodeName", rule)
        for hint in filter(None, (mistyped_mode(admitted), self._unit_hint(admitted))):
            self._notes.append(Note(f"{path}: {hint}" if path else hint, origin))
        return admitted

    def _unit_hint(self, pod: Pod) -> str:
        """Return a hint if a pod's memory request is implausible for the nodes' GPUs, or "".

        The user may have meant another memory unit. Or the pod's containers, which share a GPU, may
        together request more memory than a GPU has.
        """
        unit = self._intake.admission.configuration.unit_mib
        try:
            request = parse_request(pod, unit)
        except RequestError:
            return ""
        if request is None or request.shape.kind is not RequestKind.SHARED or not self._gpu_sizes:
            return ""
        least, most, requested = self._gpu_sizes[0] // 100, self._gpu_sizes[-1], request.shape.mib
        if least <= requested <= most:
            return ""
        largest = max(count_of(each.resources.limits, GPU_MEMORY) for each in pod.spec.containers)
        if requested > most >= largest * request.unit_mib:
            text = (
                f"its containers share a GPU and ask for {memory_text(requested)} together, "
                f"and GPUs here have up to"
            )
            return (
                f"{text} {memory_text(most)}; put containers that need different GPUs "
                f"into separate pods"
            )
        count = requested // request.unit_mib
        others = [other for other in _USUAL_UNITS if least <= count * other <= most]
        if not others:
            return ""
        text = (
            f"it asks for {count} unit{'s' if count > 1 else ''} of "
            f"{memory_text(request.unit_mib)} on a GPU, and GPUs here have up to"
        )
        instead = (
            f"did you mean units of {memory_text(others[0])}, {memory_text(count * others[0])}?"
        )
        if others[0] < SMALLEST_UNIT_MIB:
            instead = (
                f"did you mean {count} MiB? Then write {-(-count // request.unit_mib)} for each GPU"
            )
        return f"{text} {memory_text(most)}; {instead}"

    @cached_property
    def _gpu_sizes(self) -> list[int]:
        """The different memory sizes of the nodes' GPUs in MiB, in ascending order."""
        inventories = filter(None, map(inventory_of, self._nodes))
        return sorted({gpu.mib for inventory in inventories for gpu in inventory.gpus})

    def _with_usable_claims(self, origin: Origin, path: str, pod: Json) -> Json:
        """Refuse a pod with an unusable claim. With ``ignore_unknown``, remove only the claim."""
        spec, namespace = pod["spec"], pod["metadata"]["namespace"]
        reasons = [
            self._intake.claims.problem(namespace, each) for each in spec.get("resourceClaims", ())
        ]
        if not any(reasons):
            return pod
        if not self._intake.ignore_unknown:
            raise origin.error(path, next(filter(None, reasons)))
        self._notes += (Note(f"{path}: ignored: {why}", origin) for why in reasons if why)
        rest = [each for each, why in zip(spec["resourceClaims"], reasons, strict=True) if not why]
        return {**pod, "spec": {**spec, "resourceClaims": rest}}

    def _refuse_foreign_requests(self, origin: Origin, path: str, pod: Json) -> None:
        """Refuse a pod that requests GPUs of other systems.

        Other fields for these systems are reported in notes.
        """
        for where, rule in foreign_requests(path, pod):
            if not self._intake.ignore_unknown:
                raise origin.error(where, f"{rule}; gputile convert writes them")
            self._notes.append(Note(f"ignored: {where} {rule}", origin))
        unit_mib = self._intake.admission.configuration.unit_mib
        texts = foreign_notes(path, pod, unit_mib, "; gputile convert writes it")
        self._notes += (Note(text, origin) for text in texts)

    def refuse(self, manifest: Manifest, broken: list[Broken]) -> None:
        """Refuse an object with ``broken`` fields, which are invalid or unknown.

        Depending on the settings, unknown fields are refused, reported in a note, or ignored.

        Raises:
            ManifestError: a field is refused.
        """
        if not broken:
            return
        unknown = [each for each in broken if each[1].startswith("unknown field")]
        treatment = self._intake.unknown_fields
        if manifest.origin in self._intake.accepted:
            treatment = UnknownFields.IGNORED
        elif manifest.stored and treatment is UnknownFields.REFUSED:
            treatment = UnknownFields.NOTED
        if treatment is UnknownFields.NOTED:
            self._notes += [Note(f"{path}: {rule}", manifest.origin) for path, rule in unknown]
        refused = (
            broken
            if treatment is UnknownFields.REFUSED
            else [each for each in broken if each not in unknown]
        )
        if refused:
            lines = [str(manifest.origin.error(*each)) for each in refused[:MOST_OF_AN_OBJECT]]
            raise ManifestError("\n".join(lines))
