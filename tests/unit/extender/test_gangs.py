"""What the extender answers about a pod of a gang that has no place: no node, and nothing is bound (M13)."""

import asyncio

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Admission, Configuration
from gputile.api.core import Pod
from gputile.api.extender import ExtenderArgs, ExtenderBindingArgs, ExtenderPreemptionArgs, MetaVictims
from gputile.api.wellknown import GANG_NAME_LABEL, GANG_SIZE_LABEL, HOLD_ANNOTATION, POD_GROUP_LABEL
from gputile.extender.binder import Binder, Clock
from gputile.extender.verbs import Verbs
from gputile.ledger.events import PodApplied
from gputile.scheduling.placer import Placer
from tests.corebuilders import gpu_node, ledger_of, pod
from tests.unit.extender.cluster import Fate, ModelCluster

NODES = ["a", "b"]


def member(name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> Pod:
    """A pod whose gate is gone."""
    asking = pod(name, mem=1, annotations=annotations)
    return msgspec.structs.replace(asking, metadata=msgspec.structs.replace(asking.metadata, labels=labels))


@pytest.mark.parametrize(
    "labels", [{GANG_NAME_LABEL: "g", GANG_SIZE_LABEL: "2"}, {POD_GROUP_LABEL: "g"}], ids=["labels", "PodGroup"]
)
@pytest.mark.parametrize("hold", [None, "", "{", '{"version":1}'])
def test_a_pod_of_a_gang_without_a_place_goes_nowhere(labels: dict[str, str], hold: str | None) -> None:
    configuration = Configuration(admission=Admission(gangs=True))
    ledger = ledger_of(*(gpu_node(name, mode="cgpu") for name in NODES), configuration=configuration)
    asking = member("p", labels, {HOLD_ANNOTATION: hold} if hold is not None else None)
    ledger.apply(PodApplied(asking))
    cluster = ModelCluster(lambda: Fate.OK)
    cluster.add(asking)
    placer = Placer(ledger)
    verbs = Verbs(placer, Binder(placer, cluster, Clock(lambda: 0.0, lambda: 1)), cluster, lambda _: None, lambda: None)

    found = verbs.filter(ExtenderArgs(pod=asking, node_names=NODES))
    assert found.node_names == []
    assert found.failed_and_unresolvable_nodes == dict.fromkeys(NODES, "gang g: no place is kept for the pod yet")

    args = ExtenderBindingArgs(pod_name="p", pod_namespace="default", pod_uid="p", node="a")
    assert "no place is kept" in asyncio.run(verbs.bind(args)).error
    assert ledger.booking("p") is None

    offered = {"a": MetaVictims(pods=[], num_pdb_violations=0)}
    preempting = ExtenderPreemptionArgs(pod=asking, node_name_to_meta_victims=offered)
    assert asyncio.run(verbs.preempt(preempting)).node_name_to_meta_victims == {}
