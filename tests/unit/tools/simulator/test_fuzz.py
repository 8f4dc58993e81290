"""Whatever is in the files: a scenario, or a ManifestError."""

import contextlib
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputile.core.kube_predicates.predicates import Predicates
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.scenario import load_scenario
from tests.conftest import examples
from tests.unit.tools.simulator.builders import write

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
SEEDS = [
    document
    for name in ("cluster.yaml", "workloads.yaml")
    for document in yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8"))
] + [
    {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "d"},
        "spec": {
            "template": {
                "metadata": {"labels": {"app": "d"}},
                "spec": {
                    "tolerations": [{"key": "k", "operator": "Exists"}],
                    "topologySpreadConstraints": [{"topologyKey": "zone", "labelSelector": {}, "minDomains": 2}],
                    "affinity": {
                        "podAntiAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "topologyKey": "kubernetes.io/hostname",
                                    "labelSelector": {"matchLabels": {"app": "d"}},
                                }
                            ]
                        }
                    },
                    "initContainers": [{"name": "i", "restartPolicy": "Always"}],
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}],
                },
            }
        },
    }
]
NODES = {"apiVersion": "gputile.io/v1alpha1", "kind": "Cluster", "nodes": [{"name": "fuzz", "count": 2}]}
SCALARS = st.sampled_from([None, True, 0, -1, 1, 2**63, 10**30, 0.5, 1e400, "", "x", "1e99", "Ki", "-1", "\x00", "é"])
VALUES = st.recursive(
    SCALARS | st.text(max_size=5) | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIXED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=examples(300),
)


Steps = tuple[Any, ...]


def places(value: Any, path: Steps = ()) -> Iterator[Steps]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def put(body: Any, path: Steps, value: Any) -> Any:
    if not path:
        return value
    body = copy.deepcopy(body)
    target = body
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return body


def simulate(path: str) -> None:
    scenario = load_scenario([path])
    predicates = Predicates(scenario.nodes)
    for pod in scenario.bound:
        predicates.place(pod, pod.spec.node_name)
    for pod in scenario.pending[:20]:
        open_ = predicates.open_nodes(pod)
        predicates.scores(pod, np.flatnonzero(predicates.refusals(pod).open))
        if open_:
            predicates.place(pod, open_[0])
    for line in scenario.notes:
        str(line).encode()


@FIXED
@given(st.data())
def test_a_manifest_with_one_field_replaced(tmp_path: Path, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS))
    path = data.draw(st.sampled_from(list(places(seed))))
    body = put(seed, path, data.draw(VALUES))
    file = write(tmp_path, json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODES, body]}), "m.json")
    with contextlib.suppress(ManifestError):
        simulate(file)
