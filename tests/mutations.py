"""Right objects of Kubernetes, and what becomes of them when one of their values is changed.

The values that a field is set to depend on its type in the schemas that ship: nothing, texts of every form, numbers at
the bounds, choices that there are not, lists with an entry twice, mappings with odd keys, and fields that are absent.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gputile.api.kubernetes import INT_OR_STRING, QUANTITY, TIMES, kubernetes_kinds
from tests.api_rules import BESIDE
from tests.manifests import GONE, Json

Path_ = tuple[str | int, ...]
RICH_OBJECTS: tuple[Json, ...] = (
    *yaml.safe_load_all(Path(__file__).with_name("rich_objects.yaml").read_text(encoding="utf-8")),
    *BESIDE,
)
# The answer depends on what is not in the object: on what else there is, on the server's settings, or on another field
# that a newer release reads. What the simulator refuses because it cannot judge it stands here too.
_LEFT_OUT = frozenset(
    {
        *("apiVersion", "kind", "status", "namespace", "uid", "resourceVersion", "generation", "managedFields"),
        *("serviceAccount", "serviceAccountName", "priorityClassName", "runtimeClassName", "nodeName"),
        *("priority", "preemptionPolicy", "overhead", "resourceClaims", "schedulingGroup", "stopSignal"),
        *("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "nodePort", "healthCheckNodePort"),
        *("image", "medium", "runAsNonRoot", "runAsUser", "subPathExpr"),  # with some, no kubelet starts the pod
        *("clusterTrustBundle", "podCertificate", "dataSource", "dataSourceRef"),
    }
)
# What an API server does not look at, below a field of this name: it would refuse the pods or Jobs of a template, and a
# newer release reads how many pods of a StatefulSet may be replaced at a time.
_LEFT_OUT_BELOW = {
    "jobTemplate": {"metadata"},
    "metric": {"selector"},
    "template": {"metadata"},
    "updateStrategy": {"maxUnavailable"},
}
# An API server takes a Job without any time, which fails before it has a pod, and a CronJob that is always late. The
# simulator refuses them for that.
_NO_TIME = (
    (("spec", "activeDeadlineSeconds"), 0),
    (("spec", "jobTemplate", "spec", "activeDeadlineSeconds"), 0),
    (("spec", "startingDeadlineSeconds"), 0),
)
_TEXTS = (
    *("", "a", "A", "a b", "é", "x" * 64, "x" * 254, "a/b", "/a", "../a", "a/../b", "..", "-a", "a-", "a_b", "1"),
    *("65536", "a.b", "a..b", "None", "10.0.0.1", "::1", "a\nb", "$(A)", "a=b", "50%", "http://x", ".a", "a:1", "*"),
    *("*.a", "metadata.name", "limits.cpu"),
)
_NUMBERS = (-1, 0, 1, 2, 100, 101, 600, 10**9 + 1, 65535, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**31), 1.5, "1", True)
_AMOUNTS: tuple[Any, ...] = (
    *("", "0", 0, -1, "-1", "1", "1.5", "1m", "1n", "1e3", "1Ki", "1ki", "1 Gi", "1.5.5", ".5", "5.", "+1", "1K", True),
    *("a", [], {}),
)
_SHARES = ("0%", "100%", "101%", "-1%", "50", "http", "1.5%", "%", "a_b", "x" * 16)
_MAPPINGS: tuple[Any, ...] = (
    *({}, {"": "a"}, {"a b": "c"}, {"a/b/c": "d"}, {"a": ""}, {"a": None}, {"x" * 64: "a"}, {"a": "b c"}, {"a": 1}),
    *({"a": "x" * 64}, {"A.b/C": "D"}, {"é": "é"}, {"..a": "b"}, [], "x"),
)
_OTHERS: tuple[Any, ...] = ("", 0, [], {})  # of another type than most fields
_FEW = frozenset({"replicas", "parallelism", "completions"})  # fields of which a large number makes very many pods
_MANY = 1000


def changed_objects(count: int, seed: int) -> Iterator[tuple[Path_, Any, Json]]:
    """Yield ``count`` changed objects, evenly of all kinds: what was changed, to what, and the whole."""
    chance = random.Random(seed)
    changes = [list(_changes(body)) for body in RICH_OBJECTS]
    for number in range(count):
        body = RICH_OBJECTS[number % len(RICH_OBJECTS)]
        path, value = chance.choice(changes[number % len(RICH_OBJECTS)])
        yield path, value, _with(body, path, value)


def _changes(body: Json) -> Iterator[tuple[Path_, Any]]:
    root = kubernetes_kinds().kinds[body["apiVersion"]][body["kind"]]
    for path, type_name, value in _fields(root, body, ()):
        here = value is not GONE
        none = [] if isinstance(path[-1], int) else [None]  # a null in a list is refused, and read by an API server
        some = [GONE, *none, *_values(type_name, value)] if here else [_plain(type_name), *_values(type_name, None)]
        for each in some:
            many = path[-1] in _FEW and isinstance(each, int | float) and _MANY < each < 2**31
            never_has_a_pod = body["kind"] != "Pod" and (path, each) in _NO_TIME
            if each != value and not many and not never_has_a_pod:
                yield path, each


def _fields(type_name: str, value: Any, path: Path_) -> Iterator[tuple[Path_, str, Any]]:
    """Yield the fields below ``value`` with their types, those that are not there too."""
    types = kubernetes_kinds().types
    left_out = _LEFT_OUT.union(*(_LEFT_OUT_BELOW.get(str(step), ()) for step in path))
    found: Iterator[tuple[str | int, str, Any]] = iter(())
    if type_name.startswith("[]"):
        found = ((i, type_name[2:], each) for i, each in enumerate(value))
    elif type_name.startswith("{}"):
        found = ((key, type_name[2:], each) for key, each in value.items())
    elif type_name in types:
        known = types[type_name].items()
        found = ((name, text.rstrip("!"), value.get(name, GONE)) for name, text in known if name not in left_out)
    for step, of_type, each in found:
        yield (*path, step), of_type, each
        if each is not GONE:
            yield from _fields(of_type, each, (*path, step))


def _values(type_name: str, value: Any) -> Sequence[Any]:
    """Return what a field of a type is set to; ``value`` is what is there, None where nothing is."""
    if type_name.startswith("[]"):
        twice = [[*value, value[0]], value[::-1]] if value else []
        texts = [[each] for each in _TEXTS[:8]] if type_name.endswith("string") else [[{}], [_plain(type_name[2:])]]
        return [[], {}, "x", 0, *twice, *texts]
    if type_name.startswith("string("):
        choices = type_name[len("string(") : -1].split("|")
        return [*choices, choices[-1].lower(), "", "X", 0, []]
    if type_name.endswith(QUANTITY) and type_name.startswith("{}"):
        return [*_MAPPINGS, *({"cpu": amount} for amount in _AMOUNTS), {"a.b/c": "1.5"}, {"hugepages-2Mi": "1"}]
    by_type: dict[str, Sequence[Any]] = {
        "{}string": _MAPPINGS,
        "string": (*_TEXTS, 0, {}),
        "bool": (True, False, "true", 1, 0, ""),
        "int32": (*_NUMBERS, *_OTHERS),
        "int64": (*_NUMBERS, *_OTHERS),
        INT_OR_STRING: (*_SHARES, *_NUMBERS),
        QUANTITY: _AMOUNTS,
        **dict.fromkeys(TIMES, ("2026-01-31T12:00:00Z", "2026-01-31", "x", 0)),
    }
    return by_type.get(type_name, (*_OTHERS, "x", {"unknown": 1}))


def _plain(type_name: str) -> Any:
    """Return a value of a type; of an object the fields that must be there."""
    if type_name.startswith("[]"):
        return [_plain(type_name[2:])]
    if type_name.startswith("{}"):
        return {"a": _plain(type_name[2:])}
    if type_name.startswith("string("):
        return next(filter(None, type_name[len("string(") : -1].split("|")))
    fields = kubernetes_kinds().types.get(type_name)
    if fields is not None:
        return {name: _plain(text[:-1]) for name, text in fields.items() if text.endswith("!")}
    scalars = {"bool": True, "string": "a", QUANTITY: "1", "any": {}, **dict.fromkeys(TIMES, "2026-01-31T12:00:00Z")}
    return scalars.get(type_name, 1)


def _with(body: Json, path: Path_, value: Any) -> Json:
    copied: Json = json.loads(json.dumps(body))
    place: Any = copied
    for step in path[:-1]:
        place = place[step]
    if value is GONE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copied
