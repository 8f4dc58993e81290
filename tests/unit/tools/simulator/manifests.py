"""Manifests that are right, and many that are wrong in one place, each with what is said of it.

What only gputile's admission refuses is in ``FORBIDDEN``.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

Json = dict[str, Any]
GONE = object()
MEM = "aliyun.com/gpu-mem"


class Case(NamedTuple):
    """A manifest, and a part of what is said of it."""

    name: str
    body: Json
    said: str


def changed(body: Json, path: str, value: Any) -> Json:
    """Return a copy of ``body`` with the value at ``path``, whose steps stand between dots; GONE takes it away."""
    copied: Json = json.loads(json.dumps(body))  # nothing is shared, not even within the copy
    *before, last = path.split(".")
    place: Any = copied
    for step in before:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    key = int(last) if isinstance(place, list) else last
    if value is GONE:
        del place[key]
    elif isinstance(place, list) and key == len(place):
        place.append(value)
    else:
        place[key] = value
    return copied


def pod_template(restart: str = "") -> Json:
    """Return the template of pods of one container."""
    spec: Json = {"containers": [container()]}
    if restart:
        spec["restartPolicy"] = restart
    return {"metadata": {"labels": {"app": "x"}}, "spec": spec}


def container(name: str = "c") -> Json:
    """Return a container that asks for two units of a GPU's memory."""
    return {"name": name, "image": "registry.example.com/a:1", "resources": {"limits": {MEM: 2}}}


def _workload(kind: str, api_version: str, spec: Json) -> Json:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


_SELECTED: Json = {"selector": {"matchLabels": {"app": "x"}}, "template": pod_template()}
POD = _workload("Pod", "v1", {"containers": [container()]})
DEPLOYMENT = _workload("Deployment", "apps/v1", {"replicas": 2, **_SELECTED})
REPLICA_SET = _workload("ReplicaSet", "apps/v1", _SELECTED)
DAEMON_SET = _workload("DaemonSet", "apps/v1", _SELECTED)
STATEFUL_SET = _workload("StatefulSet", "apps/v1", {"serviceName": "w", **_SELECTED})
REPLICATION_CONTROLLER = _workload(
    "ReplicationController", "v1", {"selector": {"app": "x"}, "template": pod_template()}
)
JOB = _workload("Job", "batch/v1", {"template": pod_template("Never")})
CRON_JOB = _workload(
    "CronJob", "batch/v1", {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": pod_template("OnFailure")}}}
)
CLAIMING = changed(
    STATEFUL_SET,
    "spec.volumeClaimTemplates",
    [
        {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    ],
)
VALID: tuple[Json, ...] = (
    *(POD, DEPLOYMENT, REPLICA_SET, DAEMON_SET, STATEFUL_SET, REPLICATION_CONTROLLER, JOB, CRON_JOB),
    changed(POD, "metadata", {"generateName": "p-"}),
    changed(
        POD, "spec.containers.0.resources", {"limits": {MEM: "2k", "cpu": 1.5}, "requests": {"cpu": 1, MEM: "2000"}}
    ),
    changed(POD, "spec.containers.0.resources", {"limits": {"memory": "1e3", "hugepages-2Mi": "4Mi"}}),
    changed(POD, "status", {"phase": "Running"}),
    changed(JOB, "spec", {**JOB["spec"], "completionMode": "Indexed", "completions": 3, "parallelism": 2}),
    changed(CLAIMING, "spec.template.spec.containers.0.volumeMounts", [{"name": "data", "mountPath": "/data"}]),
    changed(REPLICATION_CONTROLLER, "spec.selector", GONE),
)
_C = "spec.containers.0"
_LIMITS = f"{_C}.resources.limits"
_REQUESTS = f"{_C}.resources.requests"


def _wrong(name: str, body: Json, path: str, value: Any, said: str) -> Case:
    return Case(name, changed(body, path, value), said)


# What an API server refuses too.
REFUSED: tuple[Case, ...] = (
    # fields that there are not
    _wrong(
        "resource", POD, f"{_C}.resource", {}, "spec.containers[0].resource: unknown field; did you mean resources?"
    ),
    # values of another type
    _wrong("replicas 1.5", DEPLOYMENT, "spec.replicas", 1.5, "spec.replicas: must be a whole number, is 1.5"),
    _wrong("image number", POD, f"{_C}.image", 1, "spec.containers[0].image: must be a string, is a number"),
    # one of a few
    _wrong(
        "pull", POD, f"{_C}.imagePullPolicy", "Sometimes", 'Unsupported value: "Sometimes": supported values: "Always"'
    ),
    # names
    _wrong("no name", POD, "metadata", {}, "metadata.name: Required value: name or generateName is required"),
    _wrong("upper", POD, "metadata.name", "UPPER", 'metadata.name: Invalid value: "UPPER"'),
    # containers
    _wrong("no spec", POD, "spec", GONE, "spec.containers: Required value"),
    # amounts
    _wrong("cpu 1x", POD, _LIMITS, {"cpu": "1x"}, "limits[\"cpu\"]: '1x' is not a quantity"),
    _wrong("negative", POD, _LIMITS, {"memory": "-1"}, 'Invalid value: "-1": must be greater than or equal to 0'),
    _wrong("half a unit", POD, _LIMITS, {MEM: "0.5"}, "[gpu-amount]"),
    # workloads
    _wrong("negative replicas", DEPLOYMENT, "spec.replicas", -1, "spec.replicas: must be 0 to 100000, is -1"),
    # kinds
    _wrong("v2", POD, "apiVersion", "v2", 'no matches for kind "Pod" in version "v2"; Pod is in v1'),
    _wrong("extensions", DEPLOYMENT, "apiVersion", "extensions/v1beta1", "Deployment is in apps/v1"),
    _wrong("unknown kind", POD, "kind", "Training", 'no matches for kind "Training" in version "v1"'),
    _wrong(
        "own kind",
        changed(POD, "apiVersion", "gputile.io/v1alpha1"),
        "kind",
        "Configuration",
        "a file of this kind is for --config",
    ),
)


def _env(name: str, value: str) -> list[Json]:
    return [{"name": name, "value": value}]


# What gputile's webhook and policies refuse, by the rule that they name.
FORBIDDEN: tuple[Case, ...] = (
    _wrong("visible", POD, f"{_C}.env", _env("NVIDIA_VISIBLE_DEVICES", "all"), "[environment]"),
    _wrong("privileged", POD, f"{_C}.securityContext", {"privileged": True}, "[privileged]"),
    _wrong("forged", POD, "metadata.annotations", {"gputile.io/allocation": "{}"}, "[forged-allocation]"),
    _wrong("weight", POD, "metadata.annotations", {"gputile.io/gpu-weight": "heavy"}, "[gpu-share]"),
    _wrong("unit", POD, "metadata.annotations", {"gputile.io/memory-unit-mib": "7"}, "[memory-unit]"),
    _wrong("host", POD, "spec.hostPID", True, "[host-namespace]"),
    _wrong("node", POD, "spec.nodeName", "n", "[node-name]"),
    _wrong("device", POD, "spec.volumes", [{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}], "[host-path]"),
    _wrong("two kinds", POD, _LIMITS, {MEM: 2, "nvidia.com/gpu": 1}, "[gpu-amount]"),
    _wrong("device unequal", POD, _REQUESTS, {MEM: 1}, "[gpu-amount]"),
    _wrong("percent 105", POD, _LIMITS, {MEM: 2, "aliyun.com/gpu-core.percentage": 105}, "[gpu-amount]"),
    _wrong(
        "affinity", POD, "metadata.annotations", {"scheduler.alpha.kubernetes.io/affinity": "{"}, "[legacy-affinity]"
    ),
    Case(
        "in a template",
        changed(DEPLOYMENT, "spec.template.spec.containers.0.env", _env("NVIDIA_VISIBLE_DEVICES", "all")),
        "spec.template.spec.containers[c].env[NVIDIA_VISIBLE_DEVICES]",
    ),
)


def ids(cases: Sequence[Case]) -> list[str]:
    """Return the names of cases."""
    return [case.name for case in cases]
