"""Objects that are as large as an API server takes them are judged in seconds, not in minutes."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputile.core.kube_predicates.predicates import Predicates
from gputile.support.yaml_loader import DocumentError, load_documents
from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError
from gputile.tools.simulator.rules.values.cron_schedule import broken_schedule
from tests.manifests import DEPLOYMENT, POD, Json, changed
from tests.unit.tools.simulator.builders import load_text, node, pod

pytestmark = pytest.mark.requirement("B4")

PLAIN = changed(POD, "spec.containers.0.resources", {"limits": {"cpu": 1}})
MOST_S = 8.0  # quadratic loops take minutes


def of_kind(version: str, kind: str, name: str = "x", **fields: object) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **fields}


def tolerations(count: int, prefix: str = "k") -> list[Json]:
    return [{"key": f"{prefix}{i}", "operator": "Exists"} for i in range(count)]


def containers(count: int, **fields: object) -> list[Json]:
    return [{"name": f"c{i}", "image": "i", **fields} for i in range(count)]


def spreading(expressions: int, keys: int) -> list[Json]:
    selector = {"matchExpressions": [{"key": f"a{i}", "operator": "Exists"} for i in range(expressions)]}
    rule = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector}
    return [{**rule, "matchLabelKeys": [f"b{i}" for i in range(keys)]}]


def repelling(count: int) -> Json:
    lists = {f"{field}LabelKeys": [f"{field}{i}" for i in range(count)] for field in ("match", "mismatch")}
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, **lists}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


OWNERS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": f"o{i}", "uid": str(i)} for i in range(15_000)]
MOUNTING = containers(
    1,
    volumeMounts=[{"name": "v", "mountPath": f"/m{i}"} for i in range(10_000)],
    volumeDevices=[{"name": "d", "devicePath": f"/d{i}"} for i in range(10_000)],
)
VOLUMES = [{"name": f"v{i}", "emptyDir": {}} for i in range(15_000)]
CLASS = of_kind("storage.k8s.io/v1", "StorageClass", provisioner="p.io/p")
RUNTIME = of_kind("node.k8s.io/v1", "RuntimeClass", handler="r")
LIMITED = {"limits": [{"type": "Container", "defaultRequest": {"cpu": 1}, "max": {"memory": "1Gi"}}]}


def topology(terms: Iterable[tuple[str, list[str]]]) -> list[Json]:
    return [{"matchLabelExpressions": [{"key": key, "values": values}]} for key, values in terms]


def bodies_of(name: str) -> list[Json]:
    """Return the objects of a case: built when they are needed."""
    rollout = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
    match name:
        case "owners":
            return [changed(PLAIN, "metadata.ownerReferences", OWNERS)]
        case "tolerations of a RuntimeClass":
            return [{**RUNTIME, "scheduling": {"tolerations": tolerations(15_000)}}]
        case "terms of a StorageClass":
            return [{**CLASS, "allowedTopologies": topology((f"k{i}", ["v"]) for i in range(12_000))}]
        case "values of a StorageClass":
            return [{**CLASS, "allowedTopologies": topology([("k", [f"v{i}" for i in range(50_000)])])}]
        case "mounts":
            return [changed(PLAIN, "spec", {"containers": MOUNTING})]
        case "spreading":
            return [changed(PLAIN, "spec.topologySpreadConstraints", spreading(20_000, 20_000))]
        case "affinity":
            return [changed(PLAIN, "spec.affinity", repelling(40_000))]
        case "a RuntimeClass beside a Pod":
            of_pod = changed(changed(PLAIN, "spec.runtimeClassName", "x"), "spec.tolerations", tolerations(10_000, "p"))
            return [{**RUNTIME, "scheduling": {"tolerations": tolerations(10_000)}}, of_pod]
        case "containers and volumes":
            return [changed(PLAIN, "spec", {"containers": containers(3_000), "volumes": VOLUMES})]
        case "quotas":
            hard = {"hard": {"requests.cpu": 1_000_000}}
            quotas = [of_kind("v1", "ResourceQuota", f"q{i}", spec=hard) for i in range(500)]
            return [*quotas, changed(DEPLOYMENT, "spec.replicas", 20_000)]
        case "scopes":
            amounts = {f"hugepages-{i}Mi": 1 for i in range(1, 10_000)}
            return [of_kind("v1", "ResourceQuota", spec={"hard": amounts, "scopes": ["BestEffort"] * 10_000})]
        case "LimitRanges":
            ranges = [of_kind("v1", "LimitRange", f"l{i}", spec=LIMITED) for i in range(1_000)]
            return [*ranges, *(changed(PLAIN, "metadata.name", f"p{i}") for i in range(100))]
        case "a path of variables without an end":
            mount = {"name": "v", "mountPath": "/x", "subPathExpr": "$(" * 300_000}
            volumes = [{"name": "v", "emptyDir": {}}]
            return [changed(changed(PLAIN, "spec.volumes", volumes), "spec.containers.0.volumeMounts", [mount])]
        case "unknown fields":
            spec = {**PLAIN["spec"], **{f"conteiner{i}": 1 for i in range(19)}}
            return [{**PLAIN, "metadata": {"name": f"p{i}"}, "spec": spec} for i in range(4_000)]
        case "Rollouts":
            deployments = [
                changed(changed(DEPLOYMENT, "metadata.name", f"d{i}"), "spec.replicas", 0) for i in range(600)
            ]
            named = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": f"d{i}"} for i in range(600)]
            return [
                *({**rollout, "metadata": {"name": each["name"]}, "spec": {"workloadRef": each}} for each in named),
                *deployments,
            ]
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("owners", ""),
        ("tolerations of a RuntimeClass", ""),
        ("terms of a StorageClass", ""),
        ("values of a StorageClass", ""),
        ("mounts", "Not found"),
        ("spreading", ""),
        ("affinity", ""),
        ("a RuntimeClass beside a Pod", ""),
        ("containers and volumes", ""),
        ("quotas", "must specify requests.cpu"),
        ("scopes", "unsupported scope applied to"),
        ("LimitRanges", ""),
        ("Rollouts", ""),
        ("a path of variables without an end", ""),
        ("unknown fields", "unknown field; did you mean containers?"),
    ],
)
def test_large_objects_are_judged_in_seconds(tmp_path: Path, name: str, said: str) -> None:
    manifests = load_text(tmp_path, "\n".join(map(json.dumps, bodies_of(name)))).manifests
    started = time.process_time()
    why = ""
    try:
        expand(manifests, [])
    except ManifestError as error:
        why = str(error)
    assert time.process_time() - started < MOST_S
    assert (said in why, bool(why)) == (True, bool(said)), why[:300]


def test_a_key_that_is_written_twice_is_found_at_once() -> None:
    text = "{" + ",".join(f'"k{i}":0' for i in range(60_000)) + ',"k59999":0}'
    started = time.process_time()
    with pytest.raises(DocumentError, match="the key 'k59999' is written twice"):
        list(load_documents(text))
    assert time.process_time() - started < MOST_S


def test_a_long_duration_is_judged_at_once() -> None:
    started = time.process_time()
    assert broken_schedule(f"@every {'1' * 20_000}x") is not None
    assert broken_schedule("@every 1.5h2.m.5s") is None
    assert time.process_time() - started < MOST_S


def test_what_a_template_prefers_is_counted_once() -> None:
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}
    preferred: Any = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term] * 500}}
    here, there = node("n", {"zone": "a"}), node("m")
    predicates, asking = Predicates([here, there]), pod(json.dumps({"affinity": preferred}))
    started = time.process_time()
    for _ in range(10_000):
        assert predicates.scores(asking, ["n", "m"]) == {"n": 500, "m": 300}
    assert time.process_time() - started < MOST_S
    predicates.put_node(node("m", {"zone": "a"}))
    assert predicates.scores(asking, ["n", "m"]) == {"n": 500, "m": 500}


BIG = "1" * 5_000


@pytest.mark.parametrize("schedule", [f"*/{BIG} * * * *", f"{BIG} * * * *", f"0-{BIG} * * * *"])
def test_numbers_beyond_all_bounds_in_schedules(schedule: str) -> None:
    assert broken_schedule(schedule) is not None


@pytest.mark.parametrize("field", ["maxSurge", "maxUnavailable"])
@pytest.mark.parametrize("number", [BIG, "9" * 19], ids=["many digits", "more than 64 bits"])
def test_percentages_beyond_all_bounds(tmp_path: Path, field: str, number: str) -> None:
    body = changed(DEPLOYMENT, f"spec.strategy.rollingUpdate.{field}", f"{number}%")
    with pytest.raises(ManifestError, match=rf"rollingUpdate\.{field}: Invalid value"):
        expand(load_text(tmp_path, json.dumps(body)).manifests, [])
    zeros = changed(body, f"spec.strategy.rollingUpdate.{field}", f"{'0' * 5_000}5%")
    assert len(expand(load_text(tmp_path, json.dumps(zeros)).manifests, []).pods) == 2


def test_a_number_of_json_beyond_all_bounds() -> None:
    with pytest.raises(DocumentError, match="digits"):
        list(load_documents('{"a": ' + BIG + "}"))


def test_terms_about_topologies_that_no_node_has_are_looked_up() -> None:
    """A pod may have thousands of terms, and a node has few labels."""
    terms = [{"topologyKey": f"k{i}", "labelSelector": {"matchLabels": {"a": "b"}}} for i in range(4_000)]
    affinity: Any = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    nodes = [node(f"n{i}", {"zone": "a"}) for i in range(10)]
    asking = pod(json.dumps({"affinity": affinity}))
    predicates = Predicates(nodes)
    started = time.process_time()
    for number in range(100):
        metadata = msgspec.structs.replace(asking.metadata, name=f"p{number}", uid=f"p{number}")
        alike = msgspec.structs.replace(asking, metadata=metadata)
        assert set(predicates.reasons(alike).values()) == {None}
        predicates.place(alike, f"n{number % 10}")
    assert time.process_time() - started < MOST_S
