"""Searches the fields of an object for pods, and counts them.

A mapping with a list of ``containers`` is a pod spec, and a mapping whose resources name GPUs is a
container. Fields such as ``replicas``, next to or above these mappings, state the number of pods.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gputile.api.well_known import GPU_RESOURCES
from gputile.api.wording import kind_of
from gputile.tools.simulator.fields import Json, names_of_fields
from gputile.tools.simulator.gpu_fields import (
    POD_SPEC,
    asks_for_gpus,
    container_of,
    field_with_gpus,
    gpu_amounts,
    gpu_requirements,
    is_containers,
    name_of,
    placing_fields,
)
from gputile.tools.simulator.manifests import Manifest
from gputile.tools.simulator.pod_kinds import PodsOfKind

Step = str | int
MOST_PODS_OF_A_TEMPLATE: Final = 100_000
LONGEST_KEY: Final = 63  # the largest number of characters of a key in a pod's name
# Fields whose product is the number of pods. Of each tuple, only the first existing field counts.
_COUNTS: Final = (
    (
        "replicas",
        "minReplicas",
        "numNodes",
        "instances",
        "workers",
        "numReplicas",
        "replicaCount",
        "parallelism",
        "parallelTrialCount",
    ),
    ("numOfHosts",),
)
# Such fields in Kueue's podSets and in RoleBasedGroups. They count only next to a pod template.
_BESIDE_TEMPLATES: Final = (("count", "size"),)
# Fields of a step of Argo's workflows that runs its template once per item.
_REPEATS: Final = ("withItems", "withParam", "withSequence")
_TEMPLATES: Final = ("template", "templateRef")
_ANNOTATIONS: Final = ("metadata", "annotations")
_KNATIVE_MINIMUM: Final = ("autoscaling.knative.dev/min-scale", "autoscaling.knative.dev/minScale")
# Steps of paths that are not used in names, because they do not distinguish groups of pods.
_UNTELLING: Final = ("spec", "template", "podTemplate", "templateRef", "podSpec")
NOT_JUDGED: Final = "is a manifest in a text, and names GPUs: its pods are not judged"
_NAMES: Final = ("name", "groupName")  # fields that name an entry of a list


@dataclass(frozen=True, slots=True)
class Group:
    """The pods of the template at the path ``steps``.

    ``description`` is for the user. ``rule`` is the entry of these pods in the table of kinds.
    """

    steps: tuple[Step, ...]
    template: Json
    count: int
    key: str
    description: str
    rule: PodsOfKind | None = None

    @property
    def path(self) -> str:
        return written(self.steps)

    def name(self, owner: str, number: int) -> str:
        named = self.rule.name if self.rule is not None else ""
        pattern = named or ("{name}-{key}-{number}" if self.key else "{name}-{number}")
        if "{number}" not in pattern and self.count > 1:
            pattern += "-{number}"
        return _filled(pattern, owner, self.key.lower()[:LONGEST_KEY], number)

    def labels(self, owner: str, number: int) -> dict[str, str]:
        """Return the labels that the controller adds to pod ``number``."""
        added = self.rule.labels if self.rule is not None else {}
        return {label: _filled(text, owner, self.key, number) for label, text in added.items()}


@dataclass(slots=True)
class ShapedPods:
    """The result of a search.

    ``notes`` are for the user. ``unassigned`` are paths of GPU requests that belong to no pod.
    """

    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unassigned: list[str] = field(default_factory=list)


def is_manifest_with_gpus(value: Any) -> bool:
    """Return whether a value is a text that contains a manifest and names GPUs."""
    is_manifest = isinstance(value, str) and "apiVersion:" in value
    return is_manifest and any(name in value for name in GPU_RESOURCES)


def check_count(manifest: Manifest, number: Any, steps: Iterable[Step]) -> None:
    if not _is_count(number):
        said = f"{str(number)[:30]} is not in 0 to {MOST_PODS_OF_A_TEMPLATE:,}"
        rule = said if type(number) is int else f"must be a whole number, is {kind_of(number)}"
        raise manifest.origin.error(written(steps), rule)


def value_at(value: Any, steps: Iterable[Step]) -> Any:
    """Return the value at a path, or None if there is none."""
    for step in steps:
        if isinstance(value, list) and isinstance(step, int):
            value = value[step]
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def entry_name(body: Json, steps: tuple[Step, ...]) -> str:
    """Return the name of the entry at ``steps``.

    In a mapping, it is the lowercase key. In a list, it is the entry's name field or its index.
    """
    if isinstance(steps[-1], str):
        return steps[-1].lower()
    entry = value_at(body, steps)
    names = entry if isinstance(entry, dict) else {}
    return next(
        (names[each] for each in _NAMES if isinstance(names.get(each), str)), str(steps[-1])
    )


def written(steps: Iterable[Step]) -> str:
    """Return a path in the form that messages show, such as ``spec.tasks[0]``."""
    text = ""
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def _filled(pattern: str, owner: str, key: str, number: int) -> str:
    return pattern.replace("{name}", owner).replace("{key}", key).replace("{number}", str(number))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_PODS_OF_A_TEMPLATE


@dataclass(frozen=True, slots=True)
class PodCount:
    """The number of pods for each template below a mapping.

    ``said_by`` are the paths of the fields that define the number.
    """

    pods: int = 1
    said_by: tuple[str, ...] = ()


class ShapeSearch:
    def __init__(self, found: ShapedPods, manifest: Manifest, *, is_known: bool) -> None:
        self._found = found
        self._manifest = manifest
        # Fields such as ``replicas`` may mean something else in kinds that are not in the table.
        self._is_known = is_known
        self._named = _named_templates(manifest.body)

    def walk(
        self, value: Any, steps: tuple[Step, ...], count: PodCount, above: Json | None = None
    ) -> None:
        """Find pods in the value at ``steps``. ``above`` is the mapping that contains the value."""
        if isinstance(value, list):
            groups = self._groups(above or {}, steps[:-1])
            for number, item in enumerate(value):
                group = groups.get(name_of(item), PodCount())
                each = PodCount(count.pods * group.pods, (*count.said_by, *group.said_by))
                self.walk(item, (*steps, number), each, above)
        if is_manifest_with_gpus(value):
            self._found.notes.append(f"{written(steps)} {NOT_JUDGED}")
        if not isinstance(value, dict):
            return
        if repeat := next((field for field in _REPEATS if field in value), ""):
            text = "runs its template once per item: the pods of one item are judged"
            self._found.notes.append(f"{written((*steps, repeat))} {text}")
        count = self._count(value, steps, count)
        if is_containers(value.get("containers")):
            self._pod_spec(value, steps, count, above or {})
        elif any(gpu_requirements(*item) for item in value.items()):
            container = container_of(value, steps)
            placing = placing_fields(above or {}) | placing_fields(value)
            spec = {**placing, "containers": [container]}
            self._add(spec, {}, steps, count)
            self._walk_rest(value, steps, count, skip=("limits", "requests"))
        else:
            if field := field_with_gpus(value):
                self._found.unassigned.append(written((*steps, field)))
            self._walk_rest(value, steps, count)

    def _groups(self, value: Json, steps: tuple[Step, ...]) -> dict[str, PodCount]:
        """Return the counts of groups that list member names (as in Grove), by member name."""
        return {
            name: self._count(each, (*steps, key, number), PodCount())
            for key, entries in value.items()
            for number, each in enumerate(entries if is_containers(entries) else ())
            for field, names in each.items()
            for name in (names if field.endswith("Names") and isinstance(names, list) else ())
            if isinstance(name, str)
        }

    def _count(self, value: Json, steps: tuple[Step, ...], above: PodCount) -> PodCount:
        """Multiply ``above`` by the counts in a mapping.

        A count of 0 is read as 1 unless the object is stored, so that the template is checked.
        """
        has_template = any(name in value for name in _TEMPLATES)
        for names in (*_COUNTS, *(_BESIDE_TEMPLATES if has_template else ())):
            name = next(
                (name for name in names if isinstance(value.get(name), int | float | str)), None
            )
            bound = name == "parallelism" and "template" not in value  # in Argo, only a limit
            if name is None or bound or not (self._is_known or _is_count(value[name])):
                continue
            number = value[name]
            check_count(self._manifest, number, (*steps, name))
            if name == "parallelism" and _is_count(value.get("completions")):
                number = min(number, value["completions"])
            resumed = not number and not self._manifest.stored
            said = written((*steps, name)) + (" (is 0: judged as if 1)" if resumed else "")
            above = PodCount(above.pods * (1 if resumed else number), (*above.said_by, said))
        annotations = value_at(value, _ANNOTATIONS) if steps else None
        for name in _KNATIVE_MINIMUM:
            minimum = str(value_at(annotations, (name,)))
            if minimum.isdecimal() and 1 < int(minimum) <= MOST_PODS_OF_A_TEMPLATE:
                by = written((*steps, *_ANNOTATIONS, name))
                return PodCount(above.pods * int(minimum), (*above.said_by, by))
        return above

    def _walk_rest(
        self, value: Json, steps: tuple[Step, ...], count: PodCount, skip: tuple[str, ...] = ()
    ) -> None:
        for key, item in value.items():
            if key == "templateRef" and (template := self._named.get(name_of(item))):
                self.walk(template, (*steps, key), count, value)
            elif (
                key not in skip
                and not gpu_requirements(key, item)
                and not _is_list_of(item, self._named)
            ):
                self.walk(item, (*steps, key), count, value)

    def _pod_spec(self, spec: Json, steps: tuple[Step, ...], count: PodCount, above: Json) -> None:
        """Add the pods of a pod spec. A container next to ``containers`` is added to that list.

        A spec whose containers have no image and request no GPU is skipped, because it only
        overrides fields of another template.
        """
        if not any("image" in each for each in spec["containers"]) and not asks_for_gpus(spec):
            return
        known = names_of_fields(POD_SPEC)
        kept = {key: item for key, item in spec.items() if key in known and key != "resources"}
        siblings = {key: item for key, item in spec.items() if key not in known}
        within = [
            key
            for key, item in siblings.items()
            if isinstance(item, dict) and any(gpu_requirements(*each) for each in item.items())
        ]
        kept["containers"] = [
            *spec["containers"],
            *(container_of(siblings[key], (key,)) for key in within),
        ]
        metadata = above.get("metadata") if steps[-1] == "spec" else None
        template_steps = steps[:-1] if steps[-1] == "spec" and len(steps) > 1 else steps
        self._add(kept, metadata if isinstance(metadata, dict) else {}, template_steps, count)
        for key, item in siblings.items():
            if key not in within:
                self.walk(item, (*steps, key), count, spec)

    def _add(self, spec: Json, metadata: Json, steps: tuple[Step, ...], count: PodCount) -> None:
        kept = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
        telling = [number for number, step in enumerate(steps) if step not in _UNTELLING]
        key = entry_name(self._manifest.body, steps[: telling[-1] + 1]) if telling else ""
        if key.isdecimal():  # the index of an unnamed entry: use the name of the list
            key = next(
                (each.lower() for each in reversed(steps[: telling[-1]]) if isinstance(each, str)),
                key,
            )
        gpus = ", ".join(f"{name}: {amount}" for name, amount in sorted(gpu_amounts(spec).items()))
        gpus = gpus or ("devices by claims" if asks_for_gpus(spec) else "no GPU")
        by = f" ({' x '.join(count.said_by)})" if count.said_by else ""
        description = f"of {written(steps)}{by}, {gpus}"
        self._found.groups.append(
            Group(steps, {"metadata": kept, "spec": spec}, count.pods, key, description)
        )


def _named_templates(body: Json) -> dict[str, Any]:
    """Return the templates in ``spec.*Templates`` by the names that a ``templateRef`` uses."""
    spec = body.get("spec")
    lists = (
        [value for key, value in spec.items() if key.endswith("Templates")]
        if isinstance(spec, dict)
        else []
    )
    entries = (
        each
        for listed in lists
        if isinstance(listed, list)
        for each in listed
        if isinstance(each, dict)
    )
    return {
        name: each["template"] for each in entries if (name := name_of(each)) and "template" in each
    }


def _is_list_of(value: Any, named: Mapping[str, Any]) -> bool:
    """Return whether a value is a list whose entries are all templates in ``named``."""
    return isinstance(value, list) and bool(named) and all(name_of(each) in named for each in value)
