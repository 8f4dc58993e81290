"""The HTTP verbs: kube-scheduler's wire format, and an answer to every byte sequence (bad input never books)."""

import json
from typing import Any

import pytest

from gputile.api.core import Pod
from gputile.api.well_known import GPU_MEMORY
from gputile.api.wording import LONGEST_REFUSAL
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.app import LARGEST_BODY, MOST_ITEMS, MOST_ITEMS_ELSE, create_app
from gputile.controlplane.extender.binder import Binder
from gputile.controlplane.extender.handlers import ExtenderHandlers, PodEvent
from gputile.controlplane.extender.metrics import ExtenderMetrics
from gputile.controlplane.leader_election import NotReady
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.support.http_requests import BodyReader
from tests.fakes.claimbuilders import claim
from tests.fakes.corebuilders import gpu_node as plain_node
from tests.fakes.corebuilders import ledger_of
from tests.fakes.corebuilders import pod as plain_pod
from tests.fakes.http import ask, sent
from tests.unit.controlplane.extender.builders import gpu_node, gpu_pod
from tests.unit.controlplane.extender.cluster import Fate, ModelCluster

pytestmark = pytest.mark.requirement("B1")


class Served:
    """The handler on two nodes."""

    def __init__(self, ready: str = "", intake: BodyReader | None = None, *, not_listed: str | None = None) -> None:
        self.ledger: Ledger = ledger_of(gpu_node("a"), gpu_node("b", mode="core_mem"))
        self.cluster = ModelCluster(lambda: Fate.OK)
        self.notices: list[PodEvent] = []
        engine = PlacementEngine(self.ledger)
        binder = Binder(engine, self.cluster, lambda: 0.0, lambda: 1)
        verbs = ExtenderHandlers(
            engine, binder, self.notices.append, lambda: None, evictable=EvictablePods(lambda _: False)
        )

        async def admit() -> None:
            if ready:
                raise NotReady(ready)

        self.app = create_app(
            verbs, ExtenderMetrics(), admit, lambda: ready if not_listed is None else not_listed, intake
        )

    async def call(self, path: str, body: bytes = b"", method: str = "POST", ends: bool = True) -> tuple[int, bytes]:
        return await ask(self.app, sent(path, body, method=method, ends=ends))

    async def ask(self, verb: str, body: Any) -> Any:
        status, answer = await self.call(f"/{verb}", json.dumps(body).encode())
        assert status == 200
        return json.loads(answer)


def wire(pod: Pod) -> dict[str, Any]:
    """Return a pod as the API server writes it, with fields that gputile does not know."""
    (container,) = pod.spec.containers
    return {
        "metadata": {
            "name": pod.metadata.name,
            "namespace": "default",
            "uid": pod.metadata.uid,
            "creationTimestamp": None,
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": container.resources.limits}}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


@pytest.mark.anyio
async def test_the_way_of_a_pod_as_kube_scheduler_sends_it() -> None:
    served, pod = Served(), gpu_pod("p")
    served.cluster.add(gpu_pod("p"))
    args = {"Pod": wire(pod), "Nodes": None, "NodeNames": ["a", "b", "new"]}
    answer = await served.ask("filter", args)
    assert answer["NodeNames"] == ["a"]
    assert "core_mem" in answer["FailedAndUnresolvableNodes"]["b"]
    assert "not known" in answer["FailedAndUnresolvableNodes"]["new"]
    assert answer["FailedNodes"] == {}
    assert answer["Error"] == ""
    assert await served.ask("prioritize", {**args, "NodeNames": ["a"]}) == [{"Host": "a", "Score": 10}]
    bind = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "a"}
    assert await served.ask("bind", bind) == {"Error": ""}
    assert served.cluster.pods["default", "p"].spec.node_name == "a"
    assert "gone" in (await served.ask("bind", {**bind, "PodName": "q"}))["Error"]


@pytest.mark.anyio
@pytest.mark.parametrize(("node", "said"), [("c", " of node c"), ("a", " of node a; memory is not limited there")])
async def test_an_event_says_where_memory_is_not_limited(node: str, said: str) -> None:
    served = Served()
    served.ledger.apply_node(gpu_node("c", mode="cgpu"))
    served.cluster.add(gpu_pod("p"))
    await served.ask("bind", {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": node})
    assert served.notices[0].message.endswith(said)


@pytest.mark.anyio
@pytest.mark.requirement("B3")
async def test_pods_without_gpus_are_ranked_and_pods_with_gpus_are_left_to_prioritize() -> None:
    served = Served()
    plain = plain_pod("plain", cpu="1")
    question = {"Pod": wire(plain), "Nodes": None, "NodeNames": ["a", "b", "new"]}
    answer = await served.ask("prioritize-without-gpus", question)
    assert [each["Host"] for each in answer] == ["a", "b", "new"]
    assert sorted(each["Score"] for each in answer) == [0, 9, 10]
    assert await served.ask("prioritize-without-gpus", {**question, "Pod": wire(gpu_pod("p"))}) == []
    status, _ = await served.call("/prioritize-without-gpus", json.dumps({"Pod": wire(plain)}).encode())
    assert status == 400


@pytest.mark.anyio
@pytest.mark.requirement("G2")
async def test_a_request_that_breaks_a_rule_fits_nowhere_and_says_why() -> None:
    served = Served()
    body = wire(gpu_pod("p"))
    body["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu-mem": "0.5"}
    answer = await served.ask("filter", {"Pod": body, "NodeNames": ["a"]})
    assert answer["NodeNames"] == []
    assert "whole number" in answer["FailedAndUnresolvableNodes"]["a"]
    assert served.notices[0].reason == "InvalidGPURequest"


@pytest.mark.anyio
async def test_preempt_answers_by_uid_and_drops_nodes_where_no_leaving_helps() -> None:
    served = Served()
    args = {
        "Pod": wire(gpu_pod("p", 10)),
        "NodeNameToMetaVictims": {
            "a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1},
            "b": {"Pods": [{"UID": "w"}], "NumPDBViolations": 0},
        },
    }
    assert await served.ask("preempt", args) == {
        "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}
    }


@pytest.mark.anyio
async def test_without_names_the_remedy_is_said() -> None:
    served = Served()
    assert "nodeCacheCapable" in (await served.ask("filter", {"Pod": wire(gpu_pod("p")), "NodeNames": None}))["Error"]


@pytest.mark.anyio
async def test_a_replica_that_may_not_act_says_so() -> None:
    served = Served(ready="replica x leads")
    assert (await served.ask("filter", {"Pod": wire(gpu_pod("p")), "NodeNames": ["a"]}))["Error"].endswith(
        "replica x leads"
    )
    assert (await served.call("/prioritize", b"{}"))[0] == 503
    assert await served.call("/readyz", method="GET") == (503, b"replica x leads")
    assert (await served.call("/healthz", method="GET"))[0] == 200


@pytest.mark.anyio
@pytest.mark.requirement("B7")
async def test_metrics_count_calls_by_outcome() -> None:
    served = Served()
    await served.call("/filter", b"not json")
    text = (await served.call("/metrics", method="GET"))[1].decode()
    assert 'gputile_extender_requests_total{outcome="bad_request",verb="filter"} 1.0' in text


@pytest.mark.anyio
@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
async def test_a_body_of_very_many_items_is_not_decoded(verb: str) -> None:
    """Each item takes time, whatever it is, and all other calls wait meanwhile."""
    many = b"[" + b"{}," * MOST_ITEMS.get(verb, MOST_ITEMS_ELSE) + b"{}]"
    _, body = await Served().call(f"/{verb}", b'{"Pod": {"spec": {"containers": ' + many + b"}}}")
    assert b"items of JSON" in body


@pytest.mark.anyio
async def test_a_body_that_is_too_large_is_not_read_on() -> None:
    _, body = await Served().call("/filter", b"x" * (LARGEST_BODY + 1))
    assert f"more than {LARGEST_BODY} bytes".encode() in body


@pytest.mark.anyio
async def test_names_of_absurd_length_make_no_long_answer() -> None:
    """What is wrong with a pod is said of each node that was asked about."""
    pod = gpu_pod("p")
    pod.spec.containers[0].name = "n" * 1_000_000
    pod.spec.containers[0].resources.limits = {GPU_MEMORY: "1.5"}
    names = [f"node-{i}" for i in range(5000)]
    status, body = await Served().call("/filter", json.dumps({"Pod": wire(pod), "NodeNames": names}).encode())
    assert status == 200
    refused = json.loads(body)["FailedAndUnresolvableNodes"]
    assert len(refused) == 5000
    assert max(map(len, refused.values())) <= LONGEST_REFUSAL


@pytest.mark.anyio
@pytest.mark.requirement("B8")
async def test_a_pod_with_claims_is_ranked_by_its_claims_and_by_nothing_else() -> None:
    served = Served()
    served.ledger.apply_node(plain_node("c", mode="cgpu", claims=True))
    served.ledger.apply_claim(claim("good", memory="4Gi"))
    served.ledger.apply_claim(claim("bad", memory="0"))
    body = wire(plain_pod("p", cpu="1"))
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    body["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "good"}]
    question = {"Pod": body, "Nodes": None, "NodeNames": ["a", "c", "new"]}
    assert [each["Score"] for each in await served.ask("prioritize-claims", question)] == [0, 10, 0]
    assert await served.ask("prioritize-without-gpus", question) == []
    assert served.notices == []
    body["status"]["resourceClaimStatuses"][0]["resourceClaimName"] = "bad"
    assert [each["Score"] for each in await served.ask("prioritize-claims", question)] == [0, 0, 0]
    assert served.notices[0].reason == "InvalidGPURequest"
    assert "memory is 0" in served.notices[0].message


@pytest.mark.anyio
@pytest.mark.requirement("B8")
@pytest.mark.parametrize("not_listed", ["", "not listed"])
async def test_a_replica_that_does_not_lead_answers_about_claims_once_it_has_listed(not_listed: str) -> None:
    served = Served(ready="another replica leads", not_listed=not_listed)
    question = {"Pod": wire(plain_pod("p", cpu="1")), "Nodes": None, "NodeNames": ["a"]}
    assert "another replica" in (await served.ask("filter", question))["Error"]
    status, answer = await served.call("/prioritize-claims", json.dumps(question).encode())
    assert (status, answer) == (
        (503, b"prioritize-claims: not listed") if not_listed else (200, b'[{"Host":"a","Score":0}]')
    )
