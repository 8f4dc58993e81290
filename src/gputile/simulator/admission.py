"""What a cluster does to a pod before scheduling it: checks, the forms of early Kubernetes, the GPU toleration.

GPU amounts are not judged here: that is part of deciding, where a refusal is an answer about that one pod.
"""

import msgspec

from gputile.api.affinity import Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from gputile.api.core import Container, Pod, PodSpec, ResourceList, Toleration
from gputile.api.quantity import QuantityError, parse_quantity
from gputile.api.wellknown import GPU_RESOURCES, LEGACY_GPU, LEGACY_MODEL_LABEL, WHOLE_GPU
from gputile.device.advertised import model_label_value
from gputile.simulator.manifests import Origin
from gputile.simulator.rules import broken_rule

LEGACY_AFFINITY_ANNOTATION = "scheduler.alpha.kubernetes.io/affinity"
_TOLERATION = Toleration(key=WHOLE_GPU, operator="Exists", effect="NoSchedule")


def admit(origin: Origin, path: str, pod: Pod, notes: list[str]) -> Pod:
    """Return ``pod`` as a cluster would schedule it; ``path`` is where its fields stand ("", "spec.template").

    Raises:
        ManifestError: the API server would refuse it.
    """
    prefix = f"{path}." if path else ""
    pod = _without_legacy_affinity(origin, prefix, pod, notes)
    spec = pod.spec
    if not spec.containers:
        raise origin.error(f"{prefix}spec.containers", "a pod needs at least one container")
    for field, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for i, container in enumerate(containers):
            where = f"{prefix}spec.{field}[{i}].resources"
            _check_amounts(origin, f"{where}.limits", container.resources.limits)
            _check_amounts(origin, f"{where}.requests", container.resources.requests)
    if (broken := broken_rule(spec)) is not None:
        raise origin.error(f"{prefix}spec.{broken[0]}", broken[1])
    if any(LEGACY_GPU in _named(container) for container in _containers(spec)):
        notes.append(f"{origin}: {LEGACY_GPU} is the old name of {WHOLE_GPU}, and read as that")
    return tolerate_gpu_taint(_with_model_labels(pod))


def asks_for_gpu(pod: Pod) -> bool:
    """Return whether a container of the pod names a GPU resource."""
    return any(not _named(container).isdisjoint(GPU_RESOURCES) for container in _containers(pod.spec))


def tolerate_gpu_taint(pod: Pod) -> Pod:
    """Return ``pod`` with the toleration of the GPU nodes' taint where it asks for a GPU and has none (G7)."""
    if not asks_for_gpu(pod) or any(
        t.key in (WHOLE_GPU, "") and t.operator == "Exists" and t.effect in ("NoSchedule", "")
        for t in pod.spec.tolerations
    ):
        return pod
    return _with_spec(pod, msgspec.structs.replace(pod.spec, tolerations=[*pod.spec.tolerations, _TOLERATION]))


def _containers(spec: PodSpec) -> list[Container]:
    return [*spec.init_containers, *spec.containers]


def _named(container: Container) -> set[str]:
    return {*container.resources.limits, *container.resources.requests}


def _with_spec(pod: Pod, spec: PodSpec) -> Pod:
    return msgspec.structs.replace(pod, spec=spec)


def _check_amounts(origin: Origin, path: str, amounts: ResourceList) -> None:
    for name, amount in amounts.items():
        if name in GPU_RESOURCES:
            continue
        try:
            value = parse_quantity(amount)
        except QuantityError as error:
            raise origin.error(f'{path}["{name[:80]}"]', str(error)) from error
        if value < 0:
            raise origin.error(f'{path}["{name[:80]}"]', f"{amount} is negative")
        if "/" in name and value.denominator != 1:
            raise origin.error(f'{path}["{name[:80]}"]', f"{amount} is not a whole number, as {name} is counted")


def _without_legacy_affinity(origin: Origin, prefix: str, pod: Pod, notes: list[str]) -> Pod:
    """Move the affinity that Kubernetes 1.5 and earlier took from an annotation into the spec (L4)."""
    text = pod.metadata.annotations.get(LEGACY_AFFINITY_ANNOTATION)
    if text is None:
        return pod
    where = f'{prefix}metadata.annotations["{LEGACY_AFFINITY_ANNOTATION}"]'
    try:
        affinity = msgspec.json.decode(text, type=Affinity)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise origin.error(where, f"the affinity in it cannot be read: {error}") from error
    rest = {key: value for key, value in pod.metadata.annotations.items() if key != LEGACY_AFFINITY_ANNOTATION}
    metadata = msgspec.structs.replace(pod.metadata, annotations=rest)
    if pod.spec.affinity is not None:
        notes.append(f"{origin}: {where} is left out: spec.affinity is there and goes before it")
        return msgspec.structs.replace(pod, metadata=metadata)
    notes.append(f"{origin}: {where} is read as spec.affinity")
    return Pod(metadata=metadata, spec=msgspec.structs.replace(pod.spec, affinity=affinity), status=pod.status)


def _with_model_labels(pod: Pod) -> Pod:
    """Write GPU models as the nodes' label has them: "Tesla K80" is "Tesla-K80" there (C3)."""
    spec = pod.spec
    if LEGACY_MODEL_LABEL in spec.node_selector:
        model = model_label_value(spec.node_selector[LEGACY_MODEL_LABEL])
        spec = msgspec.structs.replace(spec, node_selector={**spec.node_selector, LEGACY_MODEL_LABEL: model})
    if spec.affinity is not None and spec.affinity.node_affinity is not None:
        nodes = _normal_models(spec.affinity.node_affinity)
        spec = msgspec.structs.replace(spec, affinity=msgspec.structs.replace(spec.affinity, node_affinity=nodes))
    return pod if spec is pod.spec else _with_spec(pod, spec)


def _normal_models(affinity: NodeAffinity) -> NodeAffinity:
    def requirement(old: NodeSelectorRequirement) -> NodeSelectorRequirement:
        if old.key != LEGACY_MODEL_LABEL:
            return old
        return msgspec.structs.replace(old, values=tuple(model_label_value(value) for value in old.values))

    def term(old: NodeSelectorTerm) -> NodeSelectorTerm:
        return msgspec.structs.replace(old, match_expressions=tuple(map(requirement, old.match_expressions)))

    required = affinity.required
    return NodeAffinity(
        required=required and NodeSelector(node_selector_terms=tuple(map(term, required.node_selector_terms))),
        preferred=tuple(msgspec.structs.replace(p, preference=term(p.preference)) for p in affinity.preferred),
    )
