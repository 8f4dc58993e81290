"""Short ways to write what the tests feed in."""

from pathlib import Path
from typing import Any

import yaml

from gputile.api.core import Node, Pod
from gputile.tools.simulator.manifests import Manifest, load_manifests
from gputile.tools.simulator.scenario import Scenario, load_scenario
from gputile.tools.simulator.workloads import Expansion, expand

CLUSTER = "{apiVersion: gputile.io/v1alpha1, kind: Cluster, nodes: [{name: 'n'}]}\n"


def load_text(tmp_path: Path, text: str | bytes) -> list[Manifest]:
    return load_manifests([write(tmp_path, text)])


def scenario(tmp_path: Path, text: str, cluster: str = CLUSTER) -> Scenario:
    return load_scenario([write(tmp_path, cluster, "cluster.yaml")], [write(tmp_path, text)])


def expand_text(tmp_path: Path, text: str, nodes: list[Node] | None = None) -> Expansion:
    return expand(load_text(tmp_path, text), nodes or [])


def write(tmp_path: Path, text: str | bytes, name: str = "m.yaml") -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def node(name: str = "n", labels: dict[str, str] | None = None, **described: Any) -> Node:
    from gputile.tools.simulator.described_nodes import described_nodes
    from gputile.tools.simulator.manifests import Origin

    entry = {"name": name, "labels": labels or {}, **described}
    body = {"apiVersion": "gputile.io/v1alpha1", "kind": "Cluster", "nodes": [entry]}
    return next(described_nodes(Manifest(Origin("test"), "gputile.io/v1alpha1", "Cluster", body)))


def pod(spec: str = "{}", name: str = "p", labels: dict[str, str] | None = None, namespace: str = "default") -> Pod:
    """Return a pod of one container; ``spec`` is YAML of the spec's other fields.

    What the API server requires and no test is about may be left out.
    """
    from gputile.tools.simulator.manifests import Origin

    fields = {"containers": [{"name": "c"}]} | yaml.safe_load(spec)
    for container in (*fields["containers"], *fields.get("initContainers", ())):
        container.setdefault("image", "i")
    for constraint in fields.get("topologySpreadConstraints", ()):
        for key, value in (("maxSkew", 1), ("whenUnsatisfiable", "DoNotSchedule")):
            constraint.setdefault(key, value)
    body = {"metadata": {"name": name, "labels": labels or {}, "namespace": namespace}, "spec": fields}
    return expand([Manifest(Origin("test", 1, 0, "Pod", name), "v1", "Pod", body)], []).pods[0]
