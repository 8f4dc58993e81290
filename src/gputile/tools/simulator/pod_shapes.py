"""Finds the pods of a custom resource by the structure of its fields.

``shape_search`` searches the fields. The table of kinds (``pod_kinds``) refines the result. Pods
that are not in the table are only inferred, so a note tells the user about them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import msgspec

from gputile.tools.simulator.gpu_fields import (
    asks_for_gpus,
)
from gputile.tools.simulator.manifests import Manifest
from gputile.tools.simulator.pod_kinds import Count, PodKind
from gputile.tools.simulator.shape_search import (
    LONGEST_KEY,
    Group,
    PodCount,
    ShapedPods,
    ShapeSearch,
    Step,
    check_count,
    entry_name,
    value_at,
)

_EACH: Final = "*"
# Annotations that request an exclusive topology domain for each Job of a JobSet or each group of a
# LeaderWorkerSet. The webhooks of these kinds then add affinities to the pods. These affinities
# are unknown here.
_EXCLUSIVE: Final = re.compile(rb'"([a-z0-9./-]+exclusive-topology)":')
# GPU resources, and fields of kinds whose controllers choose the pods' GPUs by a type of machine
# (KAITO), a profile (KubeAI) or a MIG profile.
_GPU_NAME: Final = re.compile(
    rb'"((?:nvidia|aliyun)\.com/[\w.-]+|(?:instanceType|resourceProfile)":"[^"]+|\dg\.\d+gb)"'
)
# Suffixes of kinds that describe pods for other objects, and of kinds whose GPU amounts are only
# bounds.
DEFINITIONS: Final = (
    "Class",
    "Config",
    "Pipeline",
    "Policy",
    "Profile",
    "Runtime",
    "Task",
    "Template",
)
_BOUNDS: Final = ("Cohort", "Flavor", "PodGroup", "Pool", "Queue", "Quota", "Reservation")
_OF_NODES: Final = ("Device", "NodeClaim", "NodeOverlay", "NodeResourceTopology")  # without pods


def pods_by_shape(manifest: Manifest, kind: PodKind | None = None) -> ShapedPods:
    """Return the pods of an object. ``kind`` is the entry of its kind in the table, if any.

    An object that only describes pods for other objects has no pods itself.

    Raises:
        ManifestError: a number of pods is invalid, or the object requests exclusive topology
            domains.
    """
    text = msgspec.json.encode(manifest.body)
    if found := _EXCLUSIVE.search(text):
        rule = (
            "which domains its pods get is not judged here: leave the annotation out to see "
            "where they fit without it"
        )
        raise manifest.origin.error(f"annotations[{found[1].decode()}]", rule)
    pods = ShapedPods()
    search = ShapeSearch(pods, manifest, is_known=kind is not None)
    of_nodes = kind is None and manifest.kind in _OF_NODES
    for key, value in manifest.body.items():
        if key not in ("apiVersion", "kind", "metadata", "status") and not of_nodes:
            search.walk(value, (key,), PodCount())
    if kind is None and manifest.kind.endswith(DEFINITIONS):
        unjudged = pods.unassigned or any(
            asks_for_gpus(group.template["spec"]) for group in pods.groups
        )
        more = ": the GPUs of pods that others make of it are not judged" if unjudged else ""
        return ShapedPods(notes=[f"describes pods for other objects, and makes none itself{more}"])
    pods.groups = list(_with_distinct_keys(pods.groups))
    if manifest.kind.endswith(_BOUNDS):
        pods.unassigned.clear()
    if not pods.groups and not pods.unassigned:
        is_bound = of_nodes or manifest.kind.endswith(_BOUNDS)
        named = None if is_bound else _GPU_NAME.search(text)
        name = named[1].decode().replace('":"', " ") if named else ""
        but = f", but names {name}" if name else ""
        pods.notes.append(f"has no template of pods{but}: no pods of it are judged")
    if kind is not None:
        pods.groups = list(_refined(manifest, kind, pods.groups))
        if any(group.rule for group in pods.groups):
            pods.unassigned.clear()
    inferred = [
        each for each in pods.groups if each.rule is None or "judged as if" in each.description
    ]
    pods.notes += (
        f"{each.count} pod{'' if each.count == 1 else 's'} {each.description}" for each in inferred
    )
    return pods


def _with_distinct_keys(groups: list[Group]) -> Iterator[Group]:
    """Yield the groups. Groups with equal keys get their paths as keys, so pod names differ."""
    count = Counter(group.key for group in groups)
    for group in groups:
        path = re.sub("[^a-z0-9]+", "-", group.path.lower()).strip("-")
        yield (
            group if count[group.key] == 1 else replace(group, key=path[-LONGEST_KEY:].lstrip("-"))
        )


def _refined(manifest: Manifest, kind: PodKind, groups: list[Group]) -> Iterator[Group]:
    """Yield the groups. Groups that the entry ``kind`` covers get its names, labels and counts."""
    known = set[tuple[Step, ...]]()
    for rule in kind.pods:
        for path in filter(None, (rule.template, rule.otherwise)):
            found = [
                (group, keys)
                for group in groups
                if (keys := _matched(group.steps, path)) is not None
            ]
            for group, keys in found:
                known.add(group.steps)
                numbers = [_number(manifest, each, keys) for each in rule.count]
                count = math.prod(numbers) if numbers else group.count
                key = "-".join(
                    entry_name(manifest.body, group.steps[: i + 1])
                    for i, name in enumerate(path.split("."))
                    if name == _EACH
                )
                # The mapping at the path may have fields that a pod template does not have. An
                # entry of a list has such fields by design, for example the number of pods.
                whole = value_at(manifest.body, group.steps)
                is_template = "spec" in whole and isinstance(group.steps[-1], str)
                template = whole if is_template else group.template
                yield replace(group, template=template, count=count, key=key, rule=rule)
            if found:
                break
    yield from (group for group in groups if group.steps not in known)


def _matched(steps: tuple[Step, ...], path: str) -> list[Step] | None:
    """Return the steps that match "*" in a path, or None if the path does not match ``steps``."""
    names = path.split(".")
    if len(names) != len(steps) or any(
        name not in (_EACH, step) for name, step in zip(names, steps, strict=True)
    ):
        return None
    return [step for name, step in zip(names, steps, strict=True) if name == _EACH]


def _number(manifest: Manifest, count: str | Count, keys: Iterable[Step]) -> int:
    """Return the value of a count. ``keys`` replace the "*" in its paths, one after the other."""
    asked = Count(path=count) if isinstance(count, str) else count

    def at(paths: Iterable[str], default: int) -> int:
        for path in paths:
            rest = iter(keys)
            steps = [next(rest, name) if name == _EACH else name for name in path.split(".")]
            if (value := value_at(manifest.body, steps)) is not None:
                check_count(manifest, value, steps)
                return 1 if value == 0 and not manifest.stored else int(value)
        return default

    per = at((asked.per,), 1) if asked.per else 1
    number = at((asked.path, *asked.otherwise), asked.default)
    return max(0, number // max(1, per) + asked.plus)


def is_suspended(manifest: Manifest, kind: PodKind) -> bool:
    """Return whether an object of this kind is suspended. A suspended object creates no pods."""
    found = value_at(manifest.body, kind.suspended.split(".")) if kind.suspended else None
    return found is not None and found is not False
