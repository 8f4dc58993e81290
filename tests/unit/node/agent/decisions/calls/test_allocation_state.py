"""Whatever the kubelet chooses, in whatever order, nothing is given twice and no GPU is promised beyond its memory."""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.api.well_known import GPU_MEMORY, MEMORY_UNIT_ANNOTATION, Mode
from gputile.core.devices.allocation import Chosen, allocate, binding_annotations
from gputile.core.devices.inventory import Gpu, Inventory
from gputile.core.devices.request import parse_request
from gputile.node.agent.decisions.calls.allocation import DeviceAllocator
from gputile.node.agent.decisions.calls.validation import AllocationConflict
from gputile.node.agent.decisions.devices.device_lists import devices
from gputile.node.agent.decisions.ownership import settle
from gputile.node.agent.decisions.reconciliation.differences import Release, differences
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import known_pod
from gputile.node.agent.state.listing import ListedPod, Listing
from gputile.node.agent.state.node_config import EffectiveMode, NodeConfig
from tests.corebuilders import container
from tests.examples import examples
from tests.fakes.agentcluster import simple_pod
from tests.fakes.devicetable import release

UNITS = st.sampled_from((128, 300, 512, 1024, 2048))


class Node(RuleBasedStateMachine):
    """A kubelet that follows preferences when it likes, forgets, and meets pods booked anywhere or nowhere."""

    @initialize(
        sizes=st.lists(st.integers(2048, 16_000), min_size=1, max_size=3),
        unit=UNITS,
        mode=st.sampled_from((Mode.SHARE, Mode.CGPU)),
    )
    def start(self, sizes: list[int], unit: int, mode: Mode) -> None:
        self.gpus = tuple(Gpu(i, f"GPU-{i}", mib) for i, mib in enumerate(sizes))
        self.mode, self.count = mode, 0
        self.pods: dict[str, Pod] = {}
        self.given: dict[str, dict[str, frozenset[str]]] = {}  # what the kubelet has: pod -> container -> IDs
        self.worth: dict[str, int] = {}
        self.allocation_state = AllocationState(Configuration(), self.setup_of(unit), DeviceTable())

    def setup_of(self, unit: int) -> NodeConfig:
        return NodeConfig(Inventory(self.gpus, mode=self.mode.value, unit_mib=unit), EffectiveMode(self.mode, unit))

    def listing(self) -> Listing:
        found = {}
        for key, pod in self.pods.items():
            held = self.given.get(key, {})
            shown = {c.name: {GPU_MEMORY: held[c.name]} if c.name in held else {} for c in pod.spec.containers}
            found[key] = ListedPod(pod.metadata.namespace, pod.metadata.name, shown)
        return found

    def free(self) -> set[str]:
        taken = {i for containers in self.given.values() for ids in containers.values() for i in ids}
        return {
            i
            for i, well in devices(
                self.allocation_state.node_config, self.allocation_state.device_table, {}, GPU_MEMORY
            )
            if well
        } - taken

    @rule(data=st.data(), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=2), follow=st.booleans())
    def a_pod_is_admitted(self, data: st.DataObject, sizes: list[int], follow: bool) -> None:
        self.count += 1
        unit = data.draw(st.sampled_from((self.allocation_state.node_config.effective_mode.unit_mib, 512)))
        containers = [container(f"c{i}", mem=size) for i, size in enumerate(sizes)]
        namespace = data.draw(st.sampled_from(("a", "b")))
        annotations = {MEMORY_UNIT_ANNOTATION: str(unit)}
        pod = simple_pod(f"p{self.count}", *containers, namespace=namespace, annotations=annotations)
        if data.draw(st.booleans()):
            request = parse_request(pod, 1024)
            assert request is not None
            gpu = data.draw(st.sampled_from(self.gpus))
            booked = (Chosen(gpu, 1),)
            annotations = {**annotations, **binding_annotations(allocate(request, booked, "share", 1), booked, pod)}
        meta = msgspec.structs.replace(pod.metadata, uid=f"uid-{self.count}", annotations=annotations)
        pod = msgspec.structs.replace(pod, metadata=meta)
        self.pods[pod.key] = pod
        self.allocation_state.pods[pod.key] = known_pod(pod, Configuration())
        self.worth[pod.key] = unit
        for each, size in zip(containers, sizes, strict=True):
            ids = self.choose(data, size, follow)
            if ids is None or not self.allocate(pod, each.name, ids):
                self.forget(pod.key)
                return

    def choose(self, data: st.DataObject, size: int, follow: bool) -> tuple[str, ...] | None:
        available = sorted(self.free())
        if len(available) < size:
            return None
        listing = self.listing()
        settle(self.allocation_state, listing, 1)
        wished = DeviceAllocator(self.allocation_state, listing, 0.0).preferred(GPU_MEMORY, available, (), size)
        assert set(wished) <= set(available)
        assert len(set(wished)) == len(wished) <= size
        if follow:
            rest = sorted(set(available) - set(wished))
            return tuple((*wished, *rest)[:size])
        return tuple(data.draw(st.permutations(available))[:size])

    def allocate(self, pod: Pod, name: str, ids: tuple[str, ...]) -> bool:
        listing = self.listing()
        try:
            grant, holding = DeviceAllocator(self.allocation_state, listing, 0.0, 1).allocate(GPU_MEMORY, ids)
        except AllocationConflict:
            return False
        assert grant.environment["NVIDIA_VISIBLE_DEVICES"] == f"GPU-{ids[0][1]}"
        assert holding.uid == pod.metadata.uid
        self.given.setdefault(pod.key, {})[name] = frozenset(ids)
        return True

    def forget(self, key: str) -> None:
        self.pods.pop(key)
        self.given.pop(key, None)
        self.allocation_state.pods.pop(key)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        self.forget(data.draw(st.sampled_from(sorted(self.pods))))

    @rule()
    def all_is_compared(self) -> None:
        admission = self.allocation_state
        found = differences(admission, self.listing(), 1, synced=True)
        for correction in found:
            if isinstance(correction, Release):
                release(admission.device_table, correction.uid)
        assert {holding.key for holding in admission.device_table} == set(self.given)

    @rule(unit=UNITS)
    def the_unit_changes(self, unit: int) -> None:
        self.allocation_state.node_config = self.setup_of(unit)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def the_kubelet_forgets_what_it_had_not_written_down(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.given)))
        del self.given[key]
        self.forget(key)

    @invariant()
    def no_gpu_is_promised_beyond_its_memory(self) -> None:
        if not hasattr(self, "cards"):
            return
        for gpu in self.gpus:
            used = sum(
                self.worth[key] * sum(i.startswith(f"g{gpu.index}-") for i in ids)
                for key, containers in self.given.items()
                for ids in containers.values()
            )
            assert used <= gpu.mib

    @invariant()
    def a_gpu_without_isolation_has_one_trust_group(self) -> None:
        if not hasattr(self, "cards") or self.mode is not Mode.SHARE:
            return
        for gpu in self.gpus:
            groups = {
                key.partition("/")[0]
                for key, containers in self.given.items()
                for ids in containers.values()
                if any(i.startswith(f"g{gpu.index}-") for i in ids)
            }
            assert len(groups) <= 1

    @invariant()
    def what_is_free_is_really_there(self) -> None:
        if not hasattr(self, "cards"):
            return
        unit = self.allocation_state.node_config.effective_mode.unit_mib
        for gpu in self.gpus:
            free = sum(i.startswith(f"g{gpu.index}-") for i in self.free())
            held = self.allocation_state.device_table.mib(gpu.index)
            stale = sum(
                len(p.ids) for h in self.allocation_state.device_table if h.key not in self.given for p in h.devices
            )
            assert held + (free - stale) * unit <= gpu.mib


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=examples(120), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
