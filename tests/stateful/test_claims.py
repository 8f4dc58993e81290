"""An agent that prepares and releases claims, and is killed before any of its writes.

What must hold after every step: what is prepared on a GPU never adds up to more than it has, and each prepared claim
has its CDI file, and in the directory that this mounts its own limits. A new agent that can read the claims counts just
those that the kubelet has. When all are released nothing is left on the node.
"""

import asyncio
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.resource_claims import ResourceClaim
from gputile.api.well_known import DRIVER, MPS_THREADS_ANNOTATION, Mode
from gputile.kube.errors import ConnectionFailed
from gputile.node.agent.api_server import Wakeup
from gputile.node.agent.arbiter_process import ArbiterProcess
from gputile.node.agent.cdi import CdiFiles
from gputile.node.agent.claims.driver import ClaimsDriver
from gputile.node.agent.container_start import ContainerPreparation
from gputile.node.agent.device_table import CONTAINER_DIRECTORY, LIMITS_FILE, Limits, ListedPod
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.holdings import drop_removed
from gputile.node.agent.known_pods import known_pod, remove_pod
from gputile.node.agent.mps import GpuUuids, MpsDaemons
from gputile.node.agent.settings import HostPaths
from gputile.node.agent.time_shares import TimeShares
from gputile.node.arbiter.messages import Assignment
from gputile.node.gateway import kubelet_pb2 as dra
from gputile.node.gateway.link import Call, CallAnswer, CallRefused, NodeLock
from tests.conftest import examples
from tests.fakes.agentcluster import NODE, FakeCluster
from tests.fakes.claims import allocated, claiming_pod, claims_node, share
from tests.integration.agent.scene import machine
from tests.localcluster.nosuid import nosuid_directory
from tests.stateful.filekiller import FileKiller, Killed

pytestmark = pytest.mark.requirement("B8")

GPU_MIB, GPUS = 8192, 2
T = TypeVar("T")
writes = st.none() | st.integers(0, 14)  # before which of them the agent is killed


class RunningDaemons(MpsDaemons):
    """MPS control daemons that run."""

    async def until_up(self, gpus: GpuUuids) -> None:
        return


class ClaimCluster(FakeCluster):
    """An API server with claims, which ``down`` takes away. ``annotations`` are those of all pods."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, ResourceClaim] = {}
        self.annotations: dict[str, str] = {}

    async def claim(self, namespace: str, name: str, within: float) -> ResourceClaim | None:
        if self.down:
            raise ConnectionFailed("the API server is away")
        return self.claims.get(f"{namespace}/{name}")

    async def pod(self, namespace: str, name: str, within: float) -> Pod | None:
        claims = [f"{each.metadata.name}" for each in self.claims.values() if each.pods[0].name == name]
        found = claiming_pod(name, {"main": claims})
        found.metadata.annotations = self.annotations
        return found


class ClaimingNode(RuleBasedStateMachine):
    """The agent, the kubelet's manager of claims, and kube-scheduler, which counts what it allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="gputile-claims-"))
        usage = nosuid_directory()
        pod_resources, state = self.directory / "kubelet" / "pod-resources" / "kubelet.sock", self.directory / "state"
        pod_resources.parent.mkdir(parents=True)
        self.paths = HostPaths(Path("none"), pod_resources, state, cdi=self.directory / "cdi", usage=usage)
        self.cluster = ClaimCluster()
        self.killer = FileKiller((self.directory / "state", self.directory / "cdi", usage), lambda: None)
        self.names = itertools.count()
        self.known: dict[str, dra.Claim] = {}  # what the kubelet has asked for, and will release
        self.prepared: dict[str, ResourceClaim] = {}  # what it was answered

    @initialize(mode=st.sampled_from([Mode.CGPU, Mode.CORE_MEM]))
    def begin(self, mode: Mode) -> None:
        self.mode = mode
        self.start_agent()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def start_agent(self) -> None:
        self.killer.revive()
        there = machine([GPU_MIB] * GPUS)
        self.state = claims_node(self.mode, there)
        self.store = NodeFiles(self.paths.state, NodeLock(self.paths.claim, ""), UsageFiles(self.paths.usage))
        self.state.records, self.state.started = self.store.records(), self.store.started()
        self.state.answered = self.state.records.keys() - self.state.started
        self.state.saved_mode = self.state.node_config.effective_mode
        cdi = CdiFiles(self.directory / "cdi")
        arbiter = ArbiterProcess(self.store, lambda _: TimeShares(Assignment(), {}, {}))
        daemons = RunningDaemons(self.paths.state / "mps", "none")
        self.preparation = preparation = ContainerPreparation(self.store, daemons, cdi, arbiter)
        self.driver = ClaimsDriver(NODE, self.state, preparation, self.cluster, Wakeup())
        self.driver.restore()
        self.those_that_the_kubelet_has_hold_gpus_and_no_others()

    def call(self, method: str, body: bytes, kill: int | None) -> bytes | None:
        """Return the agent's answer, None where it was killed meanwhile, and another one has come."""
        if kill is not None:
            self.killer.arm([kill])
        try:
            answered = self.do(self.driver.answer(Call(1, method, DRIVER, body)))
        except Killed:
            self.killer.disarm()
            self.start_agent()
            return None
        self.killer.disarm()
        assert isinstance(answered, CallAnswer)
        return answered.body

    def room(self, index: int) -> int:
        """Return what kube-scheduler has left of a GPU."""
        claims = self.cluster.claims.values()
        return GPU_MIB - sum(each.mib for c in claims for each in c.gpus if each.device == f"gpu-{index}")

    @rule(index=st.integers(0, GPUS - 1), gib=st.integers(1, 8))
    def allocate(self, index: int, gib: int) -> None:
        if self.room(index) >= gib * 1024:
            amounts = {"cores": "5"} if self.mode is Mode.CORE_MEM else {}
            name = f"c{next(self.names)}"
            claim = allocated(name, share(index, f"{gib}Gi", **amounts), pods=(name,))
            self.cluster.claims[claim.key] = claim

    def not_prepared(self) -> list[str]:
        return sorted(self.cluster.claims.keys() - {f"{each.namespace}/{each.name}" for each in self.known.values()})

    @precondition(lambda self: self.not_prepared())
    @rule(data=st.data(), index=st.integers(0, GPUS - 1))
    def allocate_again(self, data: st.DataObject, index: int) -> None:
        """A claim that is not prepared any more is allocated for another pod."""
        before = self.cluster.claims.pop(data.draw(st.sampled_from(self.not_prepared())))
        if self.room(index) >= GPU_MIB // 4:
            name = before.metadata.name
            amounts = {"cores": "5"} if self.mode is Mode.CORE_MEM else {}
            before = allocated(name, share(index, "2Gi", **amounts), pods=(f"{name}-{next(self.names)}",))
        self.cluster.claims[before.key] = before

    @precondition(lambda self: self.cluster.claims)
    @rule(data=st.data(), kill=writes)
    def prepare(self, data: st.DataObject, kill: int | None) -> None:
        self.prepare_claim(data.draw(st.sampled_from(sorted(self.cluster.claims))), kill)

    def prepare_claim(self, key: str, kill: int | None = None) -> None:
        claim = self.cluster.claims[key]
        uid = claim.metadata.uid
        asked = self.known[uid] = dra.Claim(namespace=claim.metadata.namespace, name=claim.metadata.name, uid=uid)
        body = self.call(
            "NodePrepareResources", dra.NodePrepareResourcesRequest(claims=[asked]).SerializeToString(), kill
        )
        if body is None:
            return
        answered = dra.NodePrepareResourcesResponse.FromString(body).claims[uid]
        assert bool(answered.error) == self.cluster.down, answered.error
        if not answered.error:
            assert f"gputile.io/claim={uid}" in answered.devices[0].cdi_device_ids
            self.prepared[uid] = claim

    @precondition(lambda self: self.known)
    @rule(data=st.data(), kill=writes, stays=st.booleans())
    def release(self, data: st.DataObject, kill: int | None, stays: bool) -> None:
        """The pod has gone; ``stays``: its claim has not."""
        self.release_claim(data.draw(st.sampled_from(sorted(self.known))), kill, stays=stays)

    def release_claim(self, uid: str, kill: int | None = None, *, stays: bool) -> None:
        asked = self.known[uid]
        self.prepared.pop(uid, None)  # its containers have ended
        body = self.call(
            "NodeUnprepareResources", dra.NodeUnprepareResourcesRequest(claims=[asked]).SerializeToString(), kill
        )
        if body is not None:
            assert not dra.NodeUnprepareResourcesResponse.FromString(body).claims[uid].error
            del self.known[uid]
            if not stays:
                del self.cluster.claims[f"{asked.namespace}/{asked.name}"]

    @rule(down=st.booleans())
    def api_server(self, down: bool) -> None:
        self.cluster.down = down

    @rule()
    def restart_agent(self) -> None:
        self.start_agent()

    @rule()
    def tidy(self) -> None:
        """The agent's round removes the directories of what has gone."""
        kept = self.store.remove_except(self.state.directories())
        drop_removed(self.state, kept, time.time_ns())

    def cdi_of(self, uid: str) -> Path:
        return self.directory / "cdi" / f"gputile.io-claim-{uid}.json"

    @invariant()
    def each_prepared_claim_has_its_limits(self) -> None:
        for uid, claim in self.prepared.items():
            mounts = json.loads(self.cdi_of(uid).read_bytes())["devices"][0]["containerEdits"]["mounts"]
            where = next(each["hostPath"] for each in mounts if each["containerPath"] == CONTAINER_DIRECTORY)
            limits = msgspec.json.decode((Path(where) / LIMITS_FILE).read_bytes(), type=Limits)
            assert [(f"gpu-{each.index}", each.mib) for each in limits.gpus] == [(e.device, e.mib) for e in claim.gpus]
            assert limits.uid == claim.pods[0].uid

    @invariant()
    def no_gpu_is_over_allocated(self) -> None:
        if hasattr(self, "state"):
            assert all(self.state.device_table.mib(f"GPU-{index}") <= GPU_MIB for index in range(GPUS))

    @invariant()
    def those_that_the_kubelet_has_hold_gpus_and_no_others(self) -> None:
        if hasattr(self, "state"):
            assert self.state.claims.keys() <= self.known.keys()
            assert self.state.claims.keys() >= self.prepared.keys()

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self.cluster.down = False
            self.start_agent()
            for uid in list(self.known):
                self.prepared.pop(uid, None)
                request = dra.NodeUnprepareResourcesRequest(claims=[dra.Claim(uid=uid)])
                self.call("NodeUnprepareResources", request.SerializeToString(), None)
            self.known.clear()
            self.start_agent()
            self.tidy()
            assert list((self.paths.state / "allocations").iterdir()) == []
            assert list((self.directory / "cdi").glob("gputile.io-claim-*")) == []
            assert len(self.state.device_table) == 0
        self.loop.close()
        shutil.rmtree(self.directory)


TestClaimingNode = ClaimingNode.TestCase
TestClaimingNode.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)


@pytest.fixture
def node() -> Iterator[ClaimingNode]:
    """A node in mode cgpu, as the model has it."""
    here = ClaimingNode()
    here.begin(Mode.CGPU)
    yield here
    here.teardown()


def test_a_claim_that_is_allocated_anew_has_its_new_limits(node: ClaimingNode) -> None:
    """Its directory is still there: nothing has been tidied up since it was released."""
    first, second = (allocated("c", share(0, size), pods=("pod",)) for size in ("1Gi", "2Gi"))
    node.cluster.claims[first.key] = first
    node.prepare_claim(first.key)
    node.release_claim("uid-c", stays=True)
    node.cluster.claims[second.key] = second
    node.prepare_claim(second.key)
    node.each_prepared_claim_has_its_limits()


def test_a_prepared_claim_is_prepared_again_without_a_write(node: ClaimingNode) -> None:
    claim = allocated("c", share(0, "1Gi"), pods=("pod",))
    node.cluster.claims[claim.key] = claim
    node.prepare_claim(claim.key)
    agent = node.driver
    node.prepare_claim(claim.key, kill=0)
    assert node.driver is agent, "it was not killed, as it wrote nothing"


def test_a_claim_that_is_held_is_prepared_again_though_fewer_may_share_a_gpu_by_now(node: ClaimingNode) -> None:
    """As after a reboot, or when the sandbox of a pod is made anew."""
    claims = [allocated(name, share(0, "1Gi"), pods=(name,)) for name in ("a", "b", "c")]
    node.cluster.claims |= {claim.key: claim for claim in claims}
    for claim in claims:
        node.prepare_claim(claim.key)
    node.state.configure(msgspec.structs.replace(node.state.configuration, max_pods_per_gpu=2))
    node.prepare_claim("default/a")
    assert node.cluster.events == []


def test_the_files_that_a_reboot_takes_are_written_when_the_kubelet_asks_again(node: ClaimingNode) -> None:
    """And the library, which another agent may have at another place."""
    claim = allocated("c", share(0, "1Gi"), pods=("pod",))
    node.cluster.claims[claim.key] = claim
    node.prepare_claim(claim.key)
    (library,) = (node.paths.state / "library").rglob("*.so")
    for path in (node.cdi_of("uid-c"), node.store.usage.path("claim-uid-c"), library):
        path.unlink()
        node.start_agent()
        node.prepare_claim(claim.key)
        assert path.exists()
    node.each_prepared_claim_has_its_limits()


def test_what_does_not_fit_is_refused_with_an_event_that_names_the_holders(node: ClaimingNode) -> None:
    """As an allocation that somebody forged, who may write the status of claims."""
    fits = allocated("a", share(0, "5Gi"), pods=("one",))
    forged = allocated("b", share(0, "5Gi"), pods=("two",))
    node.cluster.claims |= {fits.key: fits, forged.key: forged}
    node.prepare_claim(fits.key)
    request = dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="default", name="b", uid="uid-b")])
    body = node.call("NodePrepareResources", request.SerializeToString(), None)
    error = dra.NodePrepareResourcesResponse.FromString(body or b"").claims["uid-b"].error
    assert error == "GPU 0 has 3072 of 8192 MiB left, but the pod needs 5120; used by default/one"
    assert node.cluster.events == [("Pod two", "ClaimNotPrepared", error)]


def test_a_claim_that_was_made_anew_under_its_name_is_another_one(node: ClaimingNode) -> None:
    claim = allocated("c", share(0, "1Gi"), uid="another")
    node.cluster.claims[claim.key] = claim
    asked = dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="default", name="c", uid="uid-c")])
    body = node.call("NodePrepareResources", asked.SerializeToString(), None)
    assert "no longer exists" in dra.NodePrepareResourcesResponse.FromString(body or b"").claims["uid-c"].error


def test_an_agent_that_another_one_has_followed_answers_nothing(node: ClaimingNode) -> None:
    claim = allocated("c", share(0, "1Gi"))
    node.cluster.claims[claim.key] = claim
    NodeLock(node.paths.claim, "another").acquire()
    answered = node.do(node.driver.answer(Call(1, "NodePrepareResources", DRIVER, b"")))
    assert isinstance(answered, CallRefused)
    assert answered.code == "UNAVAILABLE"
    node.paths.claim.unlink()
    node.start_agent()


def test_calls_that_are_not_understood_end_nothing(node: ClaimingNode) -> None:
    for method, body in (("NodeWhatever", b""), ("NodePrepareResources", b"\xff\xff garbage")):
        assert isinstance(node.do(node.driver.answer(Call(1, method, DRIVER, body))), CallRefused)


def test_the_next_agent_holds_what_a_claim_has_unless_its_pod_is_gone(node: ClaimingNode) -> None:
    """Otherwise the node could change its mode under the container. A kubelet that lost its state releases nothing."""
    claim = allocated("c", share(0, "5Gi"), pods=("pod",))
    node.cluster.claims[claim.key] = claim
    node.prepare_claim(claim.key)
    before = node.state.claims
    node.start_agent()  # the kubelet does not call again, unless it or the machine starts anew
    assert node.state.claims == before
    node.each_prepared_claim_has_its_limits()
    node.state.pods.listed = node.state.listing_complete = True
    node.state.kubelet_epoch = time.monotonic()  # another kubelet has come
    node.do(node.driver.release_ended())
    assert node.state.claims == before, "the watch has not told of its pod yet"
    pod, next_pod = claiming_pod("pod", {"main": ["c"]}), claiming_pod("next", {"main": ["c"]})
    remove_pod(node.state.pods, pod)
    # The kubelet does not prepare a named claim again if its pod was deleted by force and another pod has it now.
    node.state.pods[next_pod.key] = known_pod(next_pod, Configuration())
    node.do(node.driver.release_ended())
    assert node.state.claims == before
    del node.state.pods[next_pod.key]
    node.state.listing = {pod.key: ListedPod("default", "pod")}
    node.do(node.driver.release_ended())
    assert node.state.claims == before, "the kubelet still ends the pod"
    node.state.listing, node.state.kubelet_epoch = {}, 0.0
    node.do(node.driver.release_ended())
    assert node.state.claims == before, "this kubelet has prepared the claim, and will release it"
    node.state.kubelet_epoch = time.monotonic()
    node.known.clear()
    node.prepared.clear()
    node.do(node.driver.release_ended())
    assert node.state.claims == {}


def test_a_pod_that_is_deleted_while_its_claims_are_prepared_leaves_none(
    node: ClaimingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet cancels its call, and releases the claims in any order, the second one first here."""
    claims = [allocated(name, share(0, "4Gi"), pods=("pod",)) for name in ("c1", "c2")]
    node.cluster.claims |= {each.key: each for each in claims}
    node.known = {
        e.metadata.uid: dra.Claim(namespace="default", name=e.metadata.name, uid=e.metadata.uid) for e in claims
    }
    asked, waits, left = list(node.known.values()), asyncio.Event(), asyncio.Event()

    async def start(*_: Any) -> None:
        waits.set()
        await left.wait()

    async def pod(*_: Any) -> Pod:
        return claiming_pod("pod", {"one": ["c1"], "two": ["c2"]})

    monkeypatch.setattr(node.cluster, "pod", pod)
    monkeypatch.setattr(node.preparation, "start", start)

    async def kubelet() -> None:
        body = dra.NodePrepareResourcesRequest(claims=asked).SerializeToString()
        prepare = asyncio.ensure_future(node.driver.answer(Call(1, "NodePrepareResources", DRIVER, body)))
        await waits.wait()
        body = dra.NodeUnprepareResourcesRequest(claims=asked[::-1]).SerializeToString()
        release = asyncio.ensure_future(node.driver.answer(Call(2, "NodeUnprepareResources", DRIVER, body)))
        await asyncio.sleep(0.01)
        left.set()
        await asyncio.gather(prepare, release)

    node.do(kubelet())
    assert node.state.claims == {}
    node.known.clear()


def test_an_agent_that_is_followed_while_it_prepares_promises_nothing(
    node: ClaimingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has read the records already, and would not count the claim."""
    claim = allocated("c", share(0, "1Gi"))
    node.cluster.claims[claim.key] = claim
    start = node.preparation.start

    async def slow(*given: Any) -> None:
        NodeLock(node.paths.claim, "another").acquire()
        await start(*given)

    monkeypatch.setattr(node.preparation, "start", slow)
    node.known["uid-c"] = dra.Claim(namespace="default", name="c", uid="uid-c")
    request = dra.NodePrepareResourcesRequest(claims=list(node.known.values()))
    body = node.call("NodePrepareResources", request.SerializeToString(), None)
    answered = dra.NodePrepareResourcesResponse.FromString(body or b"").claims["uid-c"]
    assert "another agent" in answered.error
    node.paths.claim.unlink()
    node.start_agent()


def test_a_client_of_mps_has_its_limit_though_no_watch_has_told_of_its_pod(node: ClaimingNode) -> None:
    node.mode = Mode.MPS
    node.start_agent()
    claim = allocated("c", share(0, "1Gi"))
    node.cluster.claims[claim.key] = claim
    node.cluster.annotations = {MPS_THREADS_ANNOTATION: "30"}
    node.prepare_claim(claim.key)
    text = node.cdi_of("uid-c").read_text()
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30" in text


def test_each_refusal_is_an_event_of_the_pods_that_wait(node: ClaimingNode) -> None:
    forged = allocated("forged", share(0, "9Gi"), pods=("one",))
    two = allocated("two", share(0, "1Gi"), pods=("a", "b"))
    node.cluster.claims |= {forged.key: forged, two.key: two}
    asked = [dra.Claim(namespace="default", name=name, uid=f"uid-{name}") for name in ("forged", "two")]
    node.call("NodePrepareResources", dra.NodePrepareResourcesRequest(claims=asked).SerializeToString(), None)
    assert [(about, reason) for about, reason, _ in node.cluster.events] == [
        ("Pod one", "ClaimNotPrepared"),
        ("Pod a", "ClaimNotPrepared"),
        ("Pod b", "ClaimNotPrepared"),
    ]
