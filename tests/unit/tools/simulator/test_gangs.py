"""Scheduling gates and gangs in a simulation: what would wait live is not placed."""

from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import AdmissionConfiguration, Configuration
from gputile.api.core import ObjectMeta
from gputile.api.workloads import PodGroup, PodGroupSpec
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.controller_rules import PodGroups
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError, load_manifests
from gputile.tools.simulator.scenario import load_scenario
from gputile.tools.simulator.simulation import PodOutcome, Simulation
from gputile.tools.simulator.what_if import fit_more
from gputile.tools.simulator.workloads import expand
from tests.unit.tools.simulator.builders import write

pytestmark = pytest.mark.requirement("B4", "M13")

CLUSTER = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes:
- {name: s1, mode: share, gpus: {count: 3, model: T4, memory: 15GiB}}
"""
GROUP = """---
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: g}
spec: {minMember: 5}
"""
URGENT = """---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1
"""
BY_OBJECT = "scheduling.x-k8s.io/pod-group: g"


def in_gang(size: int, name: str = "g") -> str:
    kind = "pod-group.scheduling.sigs.k8s.io"
    return f'{kind}/name: {name}, {kind}/min-available: "{size}"'


def pod(name: str, labels: str = "", spec: str = "", units: int | str = 10) -> str:
    limits = f"{{limits: {{aliyun.com/gpu-mem: {units}}}}}"
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec: {{{spec} containers: [{{name: c, image: i, resources: {limits}}}]}}
"""


def pods(count: int, labels: str, spec: str = "") -> str:
    return "".join(pod(f"m{i}", labels, spec) for i in range(count))


def outcomes(tmp_path: Path, text: str, *, gangs: bool = True) -> dict[str, PodOutcome]:
    scenario = load_scenario([write(tmp_path, CLUSTER, "cluster.yaml")], [write(tmp_path, text)])
    simulation = Simulation(Configuration(admission=AdmissionConfiguration(gangs=gangs)))
    return {outcome.pod.metadata.name: outcome for outcome in simulation.run(scenario, lambda: 1)}


def placed(found: dict[str, PodOutcome]) -> list[str]:
    return [name for name, outcome in found.items() if outcome.node]


@pytest.mark.requirement("M13")
@pytest.mark.parametrize("gate", ["", "schedulingGates: [{name: gputile.io/gang}],"])
@pytest.mark.parametrize(("labels", "more"), [(in_gang(5), ""), (BY_OBJECT, GROUP)])
def test_a_gang_of_five_on_room_for_three_starts_none(tmp_path: Path, labels: str, more: str, gate: str) -> None:
    """And what it leaves is there for others."""
    found = outcomes(tmp_path, pods(5, labels, gate) + pod("alone") + more)
    assert placed(found) == ["alone"]
    assert found["m4"].reason == (
        "gang g: 5 pods that start together wait: there is room for 3; "
        "s1: GPU 0 has 5 GiB of 15 GiB free; the pod needs 10 GiB on one GPU"
    )


@pytest.mark.requirement("M13")
def test_a_gang_that_fits_starts_whole_and_more_of_it_where_there_is_room(tmp_path: Path) -> None:
    found = outcomes(tmp_path, pods(4, in_gang(2)))
    assert len(placed(found)) == 3
    assert found["m0"].reason == "gang g: 2 pods that start together; binpack: GPU 0 (10 GiB)"
    assert "GPU 0 has 5 GiB of 15 GiB free" in found["m3"].reason


@pytest.mark.requirement("M13")
def test_pods_that_are_missing_keep_the_others_waiting(tmp_path: Path) -> None:
    """Not there, held by somebody else's gate, or of a size that nobody tells."""
    found = outcomes(tmp_path, pods(2, in_gang(3)) + pod("held", in_gang(3), "schedulingGates: [{name: x}],"))
    assert not placed(found)
    assert found["m0"].reason == "gang g: 2 of the 3 pods that start together exist"
    assert found["held"].reason == "it has scheduling gates that others must remove: x"
    found = outcomes(tmp_path, pods(2, BY_OBJECT))
    assert found["m0"].reason.startswith("gang g: PodGroup default/g is in none of the files")


@pytest.mark.requirement("B4", "M13")
def test_a_pod_group_that_is_known_already_counts_unless_a_file_has_it(tmp_path: Path) -> None:
    """A file goes before the cluster, also before what cannot be read there."""
    names = [write(tmp_path, CLUSTER, "cluster"), write(tmp_path, pods(3, BY_OBJECT), "pods")]
    known = PodGroups(absent="is nowhere")
    known.add(PodGroup(ObjectMeta(name="g", namespace="default"), PodGroupSpec(3)))
    broken = PodGroups(unreadable={("default", "g"): "spec.minMember: it is odd"}, absent="is nowhere")
    elsewhere = PodGroups({("other", "g"): 3}, absent="is nowhere")
    group, unsized = write(tmp_path, GROUP, "group"), write(tmp_path, GROUP.replace("minMember: 5", ""), "unsized")
    nowhere = "gang g: PodGroup default/g is nowhere, or its spec.minMember is not 1 or more"
    lacking = "gang g: 3 of the 5 pods that start together exist"
    for groups, more, why in (
        (known, [], "gang g: 3 pods that start together; binpack: GPU 0 (10 GiB)"),
        (broken, [], "gang g: the cluster's PodGroup default/g: spec.minMember: it is odd"),
        (elsewhere, [], nowhere),
        (known, [group], lacking),
        (broken, [group], lacking),
        (elsewhere, [unsized], nowhere),
        (broken, [unsized], nowhere),
    ):
        scenario = load_scenario(names[:1], [*names[1:], *more], groups=groups)
        found = list(Simulation(Configuration(admission=AdmissionConfiguration(gangs=True))).run(scenario, lambda: 1))
        assert found[0].reason == why


@pytest.mark.requirement("M13")
def test_without_planned_gangs_their_labels_mean_nothing_and_gates_stay(tmp_path: Path) -> None:
    """As live, where nobody removes the gate."""
    assert placed(outcomes(tmp_path, pods(5, in_gang(5)), gangs=False)) == ["m0", "m1", "m2"]
    gate = "schedulingGates: [{name: gputile.io/gang}],"
    found = outcomes(tmp_path, pod("m", in_gang(1), gate), gangs=False)
    assert not placed(found)
    assert found["m"].reason.startswith("it has the scheduling gate of gang default/g")


def test_a_gangs_turn_comes_by_priority_and_with_its_last_pod(tmp_path: Path) -> None:
    first = pod("m0", in_gang(2)) + pod("alone") + pod("other") + pod("m1", in_gang(2))
    assert placed(outcomes(tmp_path, first)) == ["alone", "other"]
    urgent = URGENT + pod("alone") + pod("other") + pods(2, in_gang(2), "priorityClassName: urgent,")
    assert placed(outcomes(tmp_path, urgent)) == ["m0", "m1", "alone"]


def without_gpus(name: str, labels: str, gate: str = "") -> str:
    container = "{name: c, image: i, resources: {requests: {}}}"
    spec = f"{gate} tolerations: [{{operator: Exists}}], containers: [{container}]"
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{{labels}}}}}
spec: {{{spec}}}
"""


@pytest.mark.parametrize("first", [True, False])
def test_they_count_for_the_others(tmp_path: Path, *, first: bool) -> None:
    leader, workers = without_gpus("leader", in_gang(3)), pods(2, in_gang(3))
    text = leader + workers if first else workers + leader
    assert sorted(placed(outcomes(tmp_path, text))) == ["leader", "m0", "m1"]
    nowhere = text.replace("requests: {}", "requests: {cpu: 1000}")
    assert placed(outcomes(tmp_path, nowhere)) == []


@pytest.mark.requirement("B4")
def test_how_many_more_gangs_fit(tmp_path: Path) -> None:
    """Each copy is a gang of its own."""
    scenario = load_scenario([write(tmp_path, CLUSTER, "a")], [write(tmp_path, pods(2, in_gang(2)))])
    more, scenario.pending = scenario.pending, []
    simulation = Simulation(Configuration(admission=AdmissionConfiguration(gangs=True)))
    assert list(simulation.run(scenario, lambda: 1)) == []
    fit = fit_more(simulation, more, lambda: 1, lambda _: None)
    assert (fit.copies, fit.nodes) == (1, {"s1": 2})
    assert fit.stopped_by.startswith("default/m0: gang g: 2 pods that start together wait: there is room for 1")


SET = """---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: t}}
spec:
  {spec}
  selector: {{matchLabels: {{app: t}}}}
  template:
    metadata: {{labels: {{app: t, {labels}}}}}
    spec: {{containers: [{{name: c, image: i, resources: {{limits: {{aliyun.com/gpu-mem: 5}}}}}}]}}
"""


@pytest.mark.parametrize(
    ("spec", "labels", "gangs", "refused"),
    [
        ("replicas: 3", in_gang(3), True, True),
        ("replicas: 3", BY_OBJECT, True, True),
        ("replicas: 3, podManagementPolicy: Parallel", in_gang(3), True, False),
        ("replicas: 3", in_gang(3), False, False),
    ],
)
def test_pods_that_come_one_by_one_are_no_gang(
    tmp_path: Path, spec: str, labels: str, gangs: bool, refused: bool
) -> None:
    """The first one waits for the others, which its StatefulSet makes when the first is ready."""
    text = SET.format(spec=spec.replace(", ", "\n  "), labels=labels)
    intake = Intake(Admission(Configuration(admission=AdmissionConfiguration(gangs=gangs))))
    manifests = load_manifests([write(tmp_path, text)])
    if refused:
        with pytest.raises(ManifestError, match=r"spec\.podManagementPolicy: .* set it to Parallel"):
            expand(manifests, [], intake)
    else:
        assert expand(manifests, [], intake).pods
    without = load_manifests([write(tmp_path, text.replace("aliyun.com/gpu-mem: 5", ""))])
    assert expand(without, [], intake).pods
