"""Random lives of pods on a node: no ID has two containers, what was started stays, a restart changes nothing (M4, B1).

Pods are admitted, started, forgotten by the kubelet, deleted and moved, in any order, while the agent and the machine
start anew in between.
"""

import itertools

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod, PodStatus
from gputile.api.well_known import GPU_MEMORY, WHOLE_GPU, Mode
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import ContainerRequest, Phase
from gputile.node.agent.decisions.calls.allocation import DeviceAllocator
from gputile.node.agent.decisions.calls.container_start import NotYet, prestart
from gputile.node.agent.decisions.calls.validation import AllocationConflict
from gputile.node.agent.decisions.devices.device_lists import devices
from gputile.node.agent.decisions.ownership import settle, sync_with_listing
from gputile.node.agent.decisions.reconciliation.differences import Release, differences
from gputile.node.agent.files.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_stage import DeviceEvent, DeviceStage, after
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import known_pod
from gputile.node.agent.state.listing import ListedPod, Listing
from gputile.node.agent.state.node_config import EffectiveMode, NodeConfig
from tests.corebuilders import container
from tests.examples import examples
from tests.fakes.agentcluster import simple_pod
from tests.fakes.devicetable import let_start, release

GPUS = tuple(Gpu(index, f"GPU-{index}", 8192) for index in range(3))
Stages = dict[tuple[str, str], DeviceStage]


def reachable(stage: DeviceStage) -> set[DeviceStage]:
    """Return the stages that up to two events lead to: a call of the kubelet can show that one has just happened."""
    once = {stage, *(after(stage, event) for event in DeviceEvent)}
    return once | {after(each, event) for each in once for event in DeviceEvent}


class DeviceLives(RuleBasedStateMachine):
    """A kubelet that admits, forgets and chooses as it likes, its pods, and the state of the agent."""

    @initialize(mode=st.sampled_from((Mode.CGPU, Mode.EXCLUSIVE)))
    def start(self, mode: Mode) -> None:
        self.resource = GPU_MEMORY if mode is Mode.CGPU else WHOLE_GPU
        self.config = NodeConfig(Inventory(GPUS, mode=mode.value, unit_mib=1024), EffectiveMode(mode, 1024))
        self.state = AllocationState(Configuration(), self.config, DeviceTable())
        self.pods: dict[str, Pod] = {}
        self.written: dict[str, dict[str, frozenset[str]]] = {}  # the kubelet's checkpoint: pod -> container -> IDs
        self.running: dict[tuple[str, str], frozenset[str]] = {}  # what each app container and sidecar runs with
        self.epoch = 0.0
        self.unseen: set[str] = set()  # pods that a kubelet which has started anew has still to come to
        self.count = itertools.count(1)
        self.before: Stages = {}

    # -- what the kubelet does

    def listing(self) -> Listing:
        found = {}
        for key, pod in self.pods.items():
            if key in self.unseen:
                continue
            sidecars = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
            names = [each.name for each in (*sidecars, *pod.spec.containers)]
            held = self.written.get(key, {})
            shown = {name: {self.resource: held[name]} if name in held else {} for name in names}
            found[key] = ListedPod(pod.metadata.namespace, pod.metadata.name, shown)
        return found

    def free(self) -> set[str]:
        """Return the IDs that the kubelet counts as nobody's."""
        offered = {
            i for i, healthy in devices(self.state.node_config, self.state.device_table, {}, self.resource) if healthy
        }
        return offered.difference(*(ids for held in self.written.values() for ids in held.values()))

    def asked_for(self, key: str) -> tuple[ContainerRequest, ...]:
        request = self.state.pods[key].request
        return request.containers if request is not None else ()

    def admit(self, data: st.DataObject, key: str) -> bool:
        """Ask for the devices of each container of a pod that lacks them and does not run, as the kubelet does."""
        written, reusable = self.written.setdefault(key, {}), set[str]()
        for asked in self.asked_for(key):
            size = self.state.pods[key].demand(asked, self.resource)
            held = written.get(asked.name)
            if held is None and not self.state.device_table.stage_of(self.pods[key].metadata.uid, asked.name).may_run:
                held = self.give(data, size, reusable)
                self.move(key, asked, held or frozenset())
                if held is None:
                    return False
                written[asked.name] = held
            reusable = reusable | held if held and asked.phase is Phase.INIT else reusable - (held or set())
        return True

    def move(self, key: str, asked: ContainerRequest, ids: frozenset[str]) -> None:
        """The kubelet's word goes: what it gives to another container of the pod is that one's now."""
        if asked.phase is not Phase.INIT:
            kept = {known: held for known, held in self.running.items() if known[0] != key or ids.isdisjoint(held)}
            self.running = kept

    def give(self, data: st.DataObject, size: int, reusable: set[str]) -> frozenset[str] | None:
        listing = self.listing()
        self.state.heard(listing, self.epoch, settled=not self.unseen)
        settle(self.state, listing, 1)
        must = sorted(reusable)[:size]
        # IDs of an init container that the kubelet has forgotten may be asked for by their own pod again, or by
        # another one: the call does not tell. The kubelet is taken to give them only where they are preferred.
        handed_on = {
            i for held in self.state.device_table for p in held.devices if p.phase is Phase.INIT for i in p.ids
        }
        available = sorted(self.free().union(must))
        chosen = tuple(must)
        if len(must) < size:
            wished = DeviceAllocator(self.state, listing, 0.0).preferred(self.resource, available, must, size)
            rest = sorted(set(available) - handed_on - set(wished))
            follows = data.draw(st.booleans(), label="the kubelet takes what is preferred")
            others = [*wished, *rest] if follows else [*data.draw(st.permutations(rest)), *wished]
            chosen = tuple(dict.fromkeys((*must, *others)))[:size]
        if len(chosen) < size:
            return None
        try:
            DeviceAllocator(self.state, listing, 0.0, 1).allocate(self.resource, chosen, may_wait=True)
        except AllocationConflict:
            return None
        return frozenset(chosen)

    # -- what happens

    @rule(
        data=st.data(), init=st.integers(0, 2), sidecar=st.integers(0, 2), apps=st.lists(st.integers(1, 2), max_size=2)
    )
    def a_pod_comes(self, data: st.DataObject, init: int, sidecar: int, apps: list[int]) -> None:
        name, resource = f"p{next(self.count)}", self.resource
        first = [container("init", asks={resource: init})] if init else []
        side = container("side", sidecar=True, asks={resource: sidecar})
        first += [side] if sidecar else []
        others = [container(f"c{i}", asks={resource: size}) for i, size in enumerate(apps or [1])]
        pod = simple_pod(name, *others, init=tuple(first))
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=f"uid-{name}"))
        self.pods[pod.key] = pod
        self.state.pods[pod.key] = known_pod(pod, Configuration())
        if not self.admit(data, pod.key):
            self.remove(pod.key)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def containers_are_started(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.pods)))
        for asked in self.asked_for(key):
            ids = self.written.get(key, {}).get(asked.name)
            if ids is None:  # forgotten: it waits until it is admitted again, unless it runs
                if asked.phase is Phase.INIT or (key, asked.name) in self.running:
                    continue
                return
            try:
                starts = prestart(self.state, self.resource, tuple(sorted(ids)), self.listing(), 2)
            except NotYet:
                return
            for each in starts:
                let_start(self.state.device_table, each.directory)
            if asked.phase is not Phase.INIT:
                self.running[key, asked.name] = ids
            if data.draw(st.booleans(), label="no more for now"):
                return
        pod = msgspec.structs.replace(self.pods[key], status=PodStatus(phase="Running"))
        self.pods[key], self.state.pods[key] = pod, known_pod(pod, Configuration())

    @precondition(lambda self: self.written)
    @rule(data=st.data(), everything=st.booleans())
    def the_kubelet_starts_anew_and_has_forgotten(self, data: st.DataObject, *, everything: bool) -> None:
        """It admits again, one after the other, the pods that do not run yet, and fails those that it cannot serve."""
        keys = sorted(self.written) if everything else [data.draw(st.sampled_from(sorted(self.written)))]
        for key in keys:
            self.written.pop(key, None)
        self.unseen, self.epoch = set(keys), self.epoch + 1
        for key in keys:
            self.unseen.discard(key)
            if not self.admit(data, key):
                self.remove(key)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        self.remove(data.draw(st.sampled_from(sorted(self.pods))))

    def remove(self, key: str) -> None:
        del self.pods[key], self.state.pods[key]
        self.written.pop(key, None)
        self.running = {known: ids for known, ids in self.running.items() if known[0] != key}

    @rule()
    def a_round_compares(self) -> None:
        state, listing = self.state, self.listing()
        sync_with_listing(state, listing, 3)
        found = differences(state, listing, 3, synced=True)
        for each in found:
            if isinstance(each, Release):
                release(state.device_table, each.uid)
        assert {holding.key for holding in state.device_table} <= self.pods.keys()
        state.device_table.see_started(state.device_table.started() & state.directories())

    @rule()
    def the_agent_starts_anew(self) -> None:
        """From its checkpoint, and from what the files in the allocations' directories say."""
        old = self.state.device_table
        read = decode_checkpoint(encode_checkpoint(Checkpoint(pods=tuple(old))))
        new = DeviceTable(read.pods, old.started())
        assert tuple(new) == tuple(old)
        state = AllocationState(Configuration(), self.config, new)
        state.pods.update(self.state.pods)
        before, self.state = self.stages(), state
        assert self.stages() == before
        assert state.directories() >= {each.directory for held in old for each in held.devices}

    @rule()
    def the_machine_starts_anew(self) -> None:
        self.state.device_table.see_started(())
        self.running.clear()

    # -- what is always so

    def stages(self) -> Stages:
        return {
            (pod.metadata.uid, asked.name): self.state.device_table.stage_of(pod.metadata.uid, asked.name)
            for key, pod in self.pods.items()
            for asked in self.asked_for(key)
        }

    @invariant()
    def stages_change_as_the_table_says(self) -> None:
        if hasattr(self, "state"):
            now = self.stages()
            for known, stage in self.before.items():
                assert now.get(known, stage) in reachable(stage)
            self.before = now

    @invariant()
    def no_id_has_two_running_containers(self) -> None:
        owners: dict[str, tuple[str, str]] = {}
        for known, ids in getattr(self, "running", {}).items():
            for device_id in ids:
                assert owners.setdefault(device_id, known) == known

    @invariant()
    def what_runs_keeps_its_devices_while_its_pod_is_there(self) -> None:
        for (key, name), ids in getattr(self, "running", {}).items():
            held = self.state.device_table.get(self.pods[key].metadata.uid)
            found = held.container_devices(name, self.resource) if held is not None else None
            assert found is not None
            assert frozenset(found.ids) == ids
            assert self.state.device_table.stage(found.directory) is DeviceStage.STARTED

    @invariant()
    def no_gpu_has_more_than_it_can_hold(self) -> None:
        for gpu in GPUS if hasattr(self, "state") else ():
            used = {i for ids in self.running.values() for i in ids if i.startswith(f"g{gpu.index}-")}
            assert len(used) <= (8 if self.resource == GPU_MEMORY else 1)


TestDeviceLives = DeviceLives.TestCase
TestDeviceLives.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
