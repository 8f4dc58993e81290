"""Finds which fields of a stored object change where a manifest is applied to it.

A manifest says some fields, and leaves others as they are or as the API server fills them in. It takes away what it
said when it was applied before (the annotation ``last-applied-configuration`` of kubectl) and says no more.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from gputile.api.quantity import QuantityError, parse_quantity

Json = Mapping[str, Any]
Path = tuple[str | int, ...]
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KEYS: Final = ("name", "containerPort", "mountPath", "devicePath", "topologyKey", "ip", "port")
_KEY_OF: Final = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}  # as Kubernetes merges them
# What an API server fills in where a field is not named (k8s.io/kubernetes, pkg/apis/*/v1/defaults.go), and which
# addresses it keeps: such a field can be left out again.
_FILLED_IN: Final[Mapping[str, tuple[Any, ...]]] = {
    "completionMode": ("NonIndexed",),
    "defaultMode": (0o644,),
    "dnsPolicy": ("ClusterFirst",),
    "enableServiceLinks": (True,),
    "failureThreshold": (3,),
    "periodSeconds": (10,),
    "podManagementPolicy": ("OrderedReady",),
    "preemptionPolicy": ("PreemptLowerPriority",),
    "protocol": ("TCP",),
    "reclaimPolicy": ("Delete",),
    "restartPolicy": ("Always",),
    "schedulerName": ("default-scheduler",),
    "scheme": ("HTTP",),
    "serviceAccountName": ("default",),
    "sessionAffinity": ("None",),
    "successThreshold": (1,),
    "terminationGracePeriodSeconds": (30,),
    "terminationMessagePath": ("/dev/termination-log",),
    "terminationMessagePolicy": ("File",),
    "timeoutSeconds": (1,),
    "type": ("Opaque", "ClusterIP", "RollingUpdate"),
    "volumeBindingMode": ("Immediate",),
    "volumeMode": ("Filesystem",),
    "whenScaled": ("Retain",),
    "whenDeleted": ("Retain",),
}
_NOTHING: Final[Json] = MappingProxyType({})
_ALLOCATED: Final = frozenset({"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "healthCheckNodePort"})
_AMOUNTS: Final = frozenset({"limits", "requests", "capacity", "overhead", "hard", "podFixed"})
_AN_AMOUNT: Final = frozenset({"sizeLimit", "divisor"})


def last_applied(stored: Json) -> Json:
    """Return the manifest that kubectl applied last, {} where none is known."""
    text = stored.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED)
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def changed_paths(written: Any, stored: Any, before: Any = None, path: Path = ()) -> Iterator[Path]:
    """Yield where ``written`` changes what is ``stored``; ``before`` is what was written the last time."""
    if _is_nothing(written):
        if not _is_nothing(before) and not _is_nothing(stored) and not _comes_back(path, stored):
            yield path
    elif isinstance(written, dict) and isinstance(stored, dict):
        earlier = before if isinstance(before, dict) else {}
        for key, value in written.items():
            yield from changed_paths(value, stored.get(key), earlier.get(key), (*path, key))
        for key in sorted(earlier.keys() - written.keys()):
            removed = (*path, key)
            if not _is_nothing(stored.get(key)) and not _comes_back(removed, stored[key], written):
                yield removed
    elif isinstance(written, list) and isinstance(stored, list):
        yield from _changed_entries(written, stored, before, path)
    elif not _are_equal(written, stored, path):
        yield path


def _changed_entries(written: Sequence[Any], stored: Sequence[Any], before: Any, path: Path) -> Iterator[Path]:
    """Yield where the entries of a list change; those with a name of their own are told by it."""
    earlier = before if isinstance(before, list) else []
    merged_by = _KEY_OF.get(str(path[-1])) if path else None
    candidates = (merged_by,) if merged_by is not None else _KEYS
    key = next(
        (each for each in candidates if all(_name_all(list_, each) for list_ in (written, stored, earlier))), None
    )
    if key is None:
        if len(written) != len(stored):
            yield path
            return
        for i, (one, other) in enumerate(zip(written, stored, strict=True)):
            yield from changed_paths(one, other, None, (*path, i))
        return
    there, had = {each[key]: each for each in stored}, {each[key]: each for each in earlier}
    for i, each in enumerate(written):
        yield from changed_paths(each, there.get(each[key]), had.get(each[key]), (*path, i))
    if had.keys() & there.keys() - {each[key] for each in written}:
        yield path


def _name_all(entries: Sequence[Any], key: str) -> bool:
    """Return whether each entry of a list has a value at ``key``, and no two the same."""
    named = [each.get(key) for each in entries if isinstance(each, dict)]
    return len(named) == len(entries) and all(isinstance(name, str | int) for name in named) and _differ(named)


def _differ(names: Sequence[Any]) -> bool:
    return len(set(names)) == len(names)


def _comes_back(path: Path, stored: Any, beside: Json = _NOTHING) -> bool:
    """Return whether an API server fills in what is ``stored`` where nobody names it, from what is ``beside`` it."""
    field = str(path[-1]) if path else ""
    if field == "requests":
        limits = beside.get("limits")
        given = limits if isinstance(limits, dict) else {}
        wanted = stored if isinstance(stored, dict) else {}
        return all(name in given and _are_equal(given[name], amount, path) for name, amount in wanted.items())
    if field == "imagePullPolicy":
        return bool(stored == _pull_policy(str(beside.get("image") or "")))
    return field in _ALLOCATED or any(_are_equal(each, stored, path) for each in _FILLED_IN.get(field, ()))


def _pull_policy(image: str) -> str:
    """Return what an API server fills in: an image without a tag, or with the tag latest, is always pulled."""
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].rpartition(":")
    return "Always" if not colon or tag == "latest" else "IfNotPresent"


def _is_nothing(value: Any) -> bool:
    return value is None or value in ("", {}, [])


def _are_equal(written: Any, stored: Any, path: Path) -> bool:
    if written == stored and isinstance(written, bool) == isinstance(stored, bool):
        return True
    if stored is None:
        return written in (0, False)  # an API server leaves out what it takes for nothing
    if any(step in _AMOUNTS for step in path) or path[-1] in _AN_AMOUNT:
        try:
            return _in_thousandths(written) == _in_thousandths(stored)
        except (QuantityError, TypeError):
            return False
    return False


def _in_thousandths(quantity: Any) -> int:
    """Return an amount as an API server stores it: rounded up to a thousandth.

    Raises:
        QuantityError: it is none.
    """
    return math.ceil(parse_quantity(quantity) * 1000)
