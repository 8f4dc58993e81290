"""Why pods have no place after a simulation, and what would help: what ``gputile explain`` would say then."""

from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.tools.simulator.outcomes import Advice, advice
from gputile.tools.simulator.simulation import Simulation
from tests.unit.tools.simulator.builders import scenario

pytestmark = pytest.mark.requirement("B4")

CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: a, mode: share, gpus: {count: 1, model: T4, memory: 15GiB}}
- {name: b, mode: share, gpus: {count: 1, model: T4, memory: 15GiB}}
"""


def pod(name: str, units: int = 8, labels: str = "", spec: str = "") -> str:
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec: {{{spec} containers: [{{name: c, image: i, resources: {{limits: {{aliyun.com/gpu-mem: {units}}}}}}}]}}
"""


def advised(tmp_path: Path, text: str, *, gangs: bool = False) -> dict[str, Advice]:
    """Return the advice for the pods that have no place, by their names."""
    found = scenario(tmp_path, text, CLUSTER)
    configuration = Configuration(admission=AdmissionConfiguration(gangs=gangs))
    simulation = Simulation(configuration)
    outcomes = list(simulation.run(found, lambda: 1))
    refused = [outcome.pod for outcome in outcomes if outcome.node is None]
    given = advice(refused, found, outcomes, simulation, 1)
    return {each.metadata.name: given[each.metadata.uid] for each in refused if each.metadata.uid in given}


@pytest.mark.requirement("M13")
def test_pods_that_wait_for_something_else_than_room(tmp_path: Path) -> None:
    """A gate, a gang, and a pod that wants to be beside one that came later."""
    gated = pod("gated", spec="schedulingGates: [{name: example.com/quota}],")
    kind = "pod-group.scheduling.sigs.k8s.io"
    member = pod("member", labels=f'{kind}/name: g, {kind}/min-available: "3"')
    near = "podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, "
    near += "labelSelector: {matchLabels: {app: late}}}]}"
    early = pod("early", 1, spec=f"affinity: {{{near}}},")
    assert advised(tmp_path, gated + member + early + pod("late", 1, labels="app: late"), gangs=True) == {}


def test_no_pod_of_the_same_workload_is_to_leave_but_fewer_replicas_fit(tmp_path: Path) -> None:
    """A pod that leaves would be made again by its controller."""
    text = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 3
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 15}}}]}
"""
    (found,) = advised(tmp_path, text).values()
    changes = [remedy.change for remedy in found.remedies]
    assert not [each for each in changes if "ends" in each]
    assert changes[-1] == "deployment/d makes 2 pods instead of 3"


def test_fewer_pods_are_no_remedy_if_the_others_are_of_another_kind(tmp_path: Path) -> None:
    role = "{template: {spec: {containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 15}}}]}}}"
    spec = f"{{pytorchReplicaSpecs: {{Master: {role.replace('15', '16')}, Worker: {role}}}}}"
    text = f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: j}}\nspec: {spec}"
    (found,) = advised(tmp_path, text).values()
    assert not [remedy for remedy in found.remedies if "instead of" in remedy.change]
