"""What else can go wrong between agent, kubelet and API server, and what comes of it."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.api.well_known import GPU_CORE, GPU_MEMORY, HANDOVER_ANNOTATION, MODE_LABEL, WHOLE_GPU
from gputile.core.devices.allocation import decode_allocation, encode_allocation
from gputile.core.devices.gpu_health import Health, HealthState
from gputile.node.agent import agent
from gputile.node.agent.decisions.answers.allocate import CONTAINER_DIRECTORY
from gputile.node.agent.decisions.reconciliation import rounds
from gputile.node.agent.shell import lookup
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.isolation.library import USAGE
from gputile.node.nvml.gpu_monitor import Observation
from tests.corebuilders import container
from tests.fakes.agentcluster import NODE, simple_pod
from tests.integration.agent.scene import Scene, cancelled, scene
from tests.integration.agent.test_bursts import settle

ALLOCATION = "gputile.io/allocation"
MOST_PENDING = 40
SLOW_S = 300.0  # on a busy machine


def booked(pod: Pod) -> set[str]:
    return {share.uuid for share in decode_allocation(pod.metadata.annotations[ALLOCATION]).gpus}


@pytest.mark.anyio
async def test_a_pod_that_is_bound_by_hand_gets_a_gpu_and_a_booking(short: Path) -> None:
    async with scene(short, "core_mem") as here:
        await here.until_offered(GPU_CORE, 400)
        here.cluster.create(simple_pod("full", container(mem=14, core=50)))
        await here.until_running(1)
        here.cluster.create(simple_pod("hand", container(mem=8, core=20), container("b", mem=2, core=5)), node=NODE)
        await here.until_running(2)
        await here.until(lambda: ALLOCATION in here.pod("default/hand").metadata.annotations)
        assert booked(here.pod("default/hand")) == {"GPU-1"}
        assert here.disagreements() == []
        assert ("Pod hand", "AllocationRecorded") in {(about, reason) for about, reason, _ in here.cluster.events}
        await here.until(lambda: not here.cluster.ledger.unplaced(NODE))


@pytest.mark.anyio
async def test_a_static_pod_gets_a_gpu_before_the_api_server_knows_it(short: Path) -> None:
    async with scene(short, "core_mem") as here:
        await here.until_offered(GPU_CORE, 400)
        here.cluster.create(simple_pod("static-n", container(mem=5, core=10)), static=True)
        mirror = here.cluster.pods.pop("default/static-n")
        await here.until(lambda: here.kubelet.idle)
        await here.until(lambda: here.kubelet.pods[mirror.metadata.uid].phase in ("Running", "Failed"))
        assert here.failed == {}
        seen = here.kubelet.pods[mirror.metadata.uid]
        assert len({i[:2] for ids in seen.containers["main"].ids.values() for i in ids}) == 1
        here.cluster.store(mirror)  # the mirror pod appears
        here.cluster.status(mirror.metadata.uid, "Running", "")
        await here.until(lambda: ALLOCATION in here.pod("default/static-n").metadata.annotations)
        assert here.disagreements() == []


@pytest.mark.anyio
async def test_the_kubelet_wins_where_it_does_not_follow(short: Path) -> None:
    async with scene(short, "share", (15360,) * 8, seed=3) as here:
        await here.until_offered(GPU_MEMORY, 120)
        here.kubelet.manager.honour = False
        for i in range(12):
            here.cluster.create(simple_pod(f"p{i}", container(mem=1)))
        await here.until(lambda: here.kubelet.idle)
        await here.until_running(12)
        await here.until(lambda: here.disagreements() == [])
        corrected = [message for _, reason, message in here.cluster.events if reason == "GpuBookingCorrected"]
        assert corrected
        registry = here.agent.parts.monitoring.metrics.registry
        assert registry.get_sample_value("gputile_agent_ledger_corrections_total") == len(corrected)
        assert here.failed == {}


@pytest.mark.anyio
async def test_ids_of_several_gpus_for_one_gpu_are_a_contradiction(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.kubelet.manager.honour = False
        here.cluster.create(simple_pod("p", container(mem=14)))
        await here.until(lambda: bool(here.failed))
        assert "the container asks for one GPU" in next(iter(here.failed.values()))


@pytest.mark.anyio
async def test_a_name_that_is_used_again_at_once_is_the_new_pod(short: Path) -> None:
    async with scene(short, "share", (15360,) * 8) as here:
        await here.until_offered(GPU_MEMORY, 120)
        here.cluster.lag = 0.2
        for round_ in range(6):
            for i in range(8):
                size = 3 + (i + round_) % 5
                here.cluster.create(simple_pod(f"p{i}", container(mem=size)))
            if round_ % 2 == 0:
                await here.until_running(8)
                await here.until(lambda: here.disagreements() == [])
            else:
                await asyncio.sleep(0.05)
            if round_ < 5:
                for i in range(8):
                    here.cluster.delete(f"default/p{i}")
        await here.until_running(8)
        await here.until(lambda: here.disagreements() == [])
        assert here.failed == {}


@pytest.mark.anyio
async def test_sockets_that_are_deleted_are_made_again(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        before = here.kubelet.streams
        for path in here.host_paths.device_plugins.glob("gputile-*"):
            path.unlink()
        await here.until(lambda: len(list(here.host_paths.device_plugins.glob("gputile-*"))) == 4)
        await here.until(lambda: before.isdisjoint(here.kubelet.streams))
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("p", container(mem=4)))
        await here.until_running(1)


@pytest.mark.anyio
async def test_a_kubelet_that_does_not_answer_is_asked_again(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        await here.stop_kubelet()
        here.faults.register_refused = 3
        await here.start_kubelet()
        await here.until_offered(GPU_MEMORY, 60)


@pytest.mark.anyio
async def test_without_podresources_and_api_server_allocate_still_answers(short: Path) -> None:
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.faults.deaf = True
        here.cluster.create(simple_pod("a", container(mem=4)))
        here.cluster.create(simple_pod("b", container(mem=4)))
        here.cluster.down = True
        await here.until(lambda: here.kubelet.idle)
        assert here.failed == {}
        assert max(here.kubelet.latency) < 10.0  # a deaf kubelet does not answer for an hour
        here.faults.deaf, here.cluster.down = False, False
        await here.until_running(2)
        await here.until(lambda: here.disagreements() == [])


@pytest.mark.anyio
@pytest.mark.requirement("B1")
async def test_a_pod_that_was_admitted_without_the_api_server_starts_when_it_is_known(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "PATIENCE_S", 0.5)
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.lag, here.cluster.down = 3.0, True
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until(lambda: "static:default/a" in {h.uid for h in here.agent.parts.allocation_state.device_table})
        here.cluster.down = False
        await here.until_running(1)
        await here.until(lambda: here.disagreements() == [])


@pytest.mark.anyio
@pytest.mark.parametrize("damage", ["gone", "half"])
async def test_a_lost_checkpoint_is_read_from_the_kubelet(short: Path, damage: str) -> None:
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        init = (container("init", mem=6),)
        here.cluster.create(simple_pod("a", container(mem=4), init=init))
        here.cluster.create(simple_pod("b", container(mem=4)))
        await here.until_running(2)
        before = {h.uid: h.slots for h in here.agent.parts.allocation_state.device_table}
        await here.stop_agent()
        file = here.host_paths.state / "checkpoint.json"
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-40])
        await here.start_agent()
        await here.until(lambda: {h.uid: h.slots for h in here.agent.parts.allocation_state.device_table} == before)
        await here.until_offered(GPU_MEMORY, 60)
        assert here.disagreements() == []


@pytest.mark.anyio
@pytest.mark.requirement("B1", "M4")
@pytest.mark.parametrize(("agents", "lasts"), [("remembers", 0.5), ("forgets too", 0.5), ("says nothing yet", 60.0)])
async def test_a_kubelet_that_has_forgotten_a_running_container_asks_for_the_next(
    short: Path, agents: str, lasts: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two containers of one size keeps its own allocation, and its own count of what it holds.

    A kubelet does forget when another one refuses the pod, since not all of its containers run yet, and dies before it
    has told the API server.
    """
    monkeypatch.setattr(agent, "RECONCILE_EVERY_S", 0.2)
    monkeypatch.setattr(rounds, "LASTS_S", lasts)
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.faults.held_up = "main"
        side = msgspec.structs.replace(container("side", mem=2), restart_policy="Always")
        here.cluster.create(simple_pod("a", container(mem=2), init=(side,)))
        uid = here.pod("default/a").metadata.uid
        await here.until(lambda: uid in here.kubelet.pods and "side" in here.kubelet.pods[uid].containers)
        before = here.agent.parts.allocation_state.device_table.get(uid)
        (allocation,) = (
            path for path in (here.host_paths.state / "allocations").iterdir() if path.name.endswith("side")
        )
        usage = here.host_paths.usage / USAGE / allocation.name
        usage.write_bytes(b"in use")
        await here.stop_kubelet()
        kubelets = here.host_paths.device_plugins / "kubelet_internal_checkpoint"
        known = json.loads(kubelets.read_text())
        known["Data"]["PodDeviceEntries"] = []
        kubelets.write_text(json.dumps(known))
        if agents == "forgets too":
            await here.stop_agent()
            (here.host_paths.state / "checkpoint.json").unlink()
            await here.start_agent()
        here.faults.held_up = ""
        await here.start_kubelet(after=GPU_MEMORY)
        await here.until(lambda: here.pod("default/a").status.phase == "Running", what=here.summary())
        mounted = {
            name: Path(each.mounts[CONTAINER_DIRECTORY]).name
            for name, each in here.kubelet.pods[uid].containers.items()
        }
        assert mounted == {"side": f"{uid}-side", "main": f"{uid}-main"}
        assert usage.read_bytes() == b"in use"
        now = here.agent.parts.allocation_state.device_table.get(uid)
        assert before is not None
        assert now is not None
        if agents == "remembers":
            assert now.container_devices("side", GPU_MEMORY) == before.container_devices("side", GPU_MEMORY)
        if lasts < 1:
            await here.until(lambda: "GpuForgotten" in {reason for _, reason, _ in here.cluster.events})
            assert "the GPU of side, " in next(text for _, reason, text in here.cluster.events if "Forg" in reason)
        else:  # what is over before that is not worth a word
            await asyncio.sleep(1.0)
            assert [reason for _, reason, _ in here.cluster.events if "Forg" in reason] == []


@pytest.mark.anyio
async def test_a_mode_that_is_in_force_survives_a_lost_checkpoint(short: Path) -> None:
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        here.cluster.relabel({MODE_LABEL: "topology"})
        await asyncio.sleep(0.2)
        await here.stop_agent()
        (here.host_paths.state / "checkpoint.json").unlink()
        await here.start_agent()
        await here.until(here.agent.parts.links.kubelet.registered.is_set)
        await here.until_offered(GPU_MEMORY, 60)
        await asyncio.sleep(0.5)
        assert here.kubelet.manager.allocatable()[GPU_MEMORY] == 60


@pytest.mark.anyio
async def test_an_annotation_that_names_no_gpu_is_replaced(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        text = here.pod("default/a").metadata.annotations[ALLOCATION]
        here.cluster.delete("default/a")
        await here.until(lambda: here.kubelet.idle)
        for name, annotation in (("gone", text.replace("GPU-0", "GPU-77")), ("junk", "{")):
            pod = simple_pod(name, container(mem=4), annotations={ALLOCATION: annotation})
            here.cluster.create(pod, node=NODE)
        await here.until_running(2)
        await here.until(lambda: here.disagreements() == [])
        assert encode_allocation(decode_allocation(here.pod("default/gone").metadata.annotations[ALLOCATION]))


@pytest.mark.anyio
async def test_a_gpu_that_fails_leaves_and_comes_back(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        well = here.monitor.seen
        unhealthy = Health({"GPU-0": HealthState(healthy=False, reason="XID 79")})
        here.monitor.seen, here.monitor.changed = Observation(well.machine, unhealthy), True
        await here.until_offered(GPU_MEMORY, 45)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        assert here.gpus("default/a") != ("GPU-0",)
        here.monitor.seen, here.monitor.changed = well, True
        await here.until_offered(GPU_MEMORY, 60)


async def limits_of(here: Scene, key: str, name: str = "main") -> dict[str, object]:
    uid = here.pod(key).metadata.uid
    mounts = here.kubelet.pods[uid].containers[name].mounts
    loaded: dict[str, object] = json.loads((Path(mounts["/etc/gputile/allocation"]) / "limits.json").read_text())
    return loaded


@pytest.mark.anyio
async def test_the_limits_are_there_before_the_container(short: Path) -> None:
    async with scene(short, "core_mem") as here:
        await here.until_offered(GPU_CORE, 400)
        init = (container("init", mem=6, core=30),)
        here.cluster.create(simple_pod("a", container(mem=4, core=20), init=init))
        here.cluster.create(simple_pod("w", container(asks={WHOLE_GPU: 1})))  # another mode: stays pending
        await here.until_running(1)
        limits = await limits_of(here, "default/a")
        assert limits["version"] == 1
        assert limits["container"] == "main"
        assert limits["cards"] == [{"uuid": "GPU-0", "index": 0, "mib": 4096, "percent": 20}]
        first = await limits_of(here, "default/a", "init")
        assert first["cards"] == [{"uuid": "GPU-0", "index": 0, "mib": 6144, "percent": 30}]
        directories = {path.name for path in (here.host_paths.state / "allocations").iterdir()}
        assert len(directories) == 2
        here.kubelet.finish(here.pod("default/a").metadata.uid)
        here.cluster.delete("default/a")


@pytest.mark.anyio
@pytest.mark.requirement("B1")
async def test_before_a_pod_is_refused_for_good_the_kubelet_is_asked_again(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that has ended is taken for one that runs, for the watch lags and the kubelet's checkpoint is older."""
    async with scene(short, "default", (81920,) * 2) as here:
        await here.until_offered(WHOLE_GPU, 2)
        here.cluster.create(simple_pod("ended", container(asks={WHOLE_GPU: 1})))
        await here.until_running(1)
        await here.until(lambda: not here.disagreements())
        here.cluster.lag = 60.0  # the agent hears nothing from now on
        (stale,) = here.agent.parts.allocation_state.device_table
        prefer = here.agent.parts.steps.handler.preferred

        async def prefer_and_forget(*asked: Any) -> tuple[str, ...]:
            ids = await prefer(*asked)
            here.agent.parts.allocation_state.device_table.apply(DeviceEvent.ANSWERED, stale)
            return ids

        monkeypatch.setattr(here.agent.parts.steps.handler, "preferred", prefer_and_forget)
        here.kubelet.finish(here.pod("default/ended").metadata.uid)
        both = simple_pod("both", container(asks={WHOLE_GPU: 2}))
        here.cluster.create(both)
        await here.until(lambda: here.pod("default/both").status.phase == "Running", what=here.summary())
        assert here.failed == {}


@pytest.mark.anyio
@pytest.mark.parametrize("one_at_a_time", [False, True])
async def test_an_upgrade_with_two_agents_at_once_hands_over(short: Path, one_at_a_time: bool) -> None:
    async with scene(short, "cgpu", (81920,) * 8) as here:
        await here.until_offered(GPU_MEMORY, 640)
        here.faults.one_at_a_time = one_at_a_time
        again: dict[str, Pod] = {}
        for round_ in range(3):
            former, tasks = here.agent, here.running()
            await here.start_younger_agent()  # which the cluster's watch feeds from now on
            for i in range(20):
                pod = simple_pod(f"p{round_}-{i}", container(mem=1), init=(container("init", mem=2),))
                again[pod.key] = pod
                here.cluster.create(pod)
                await asyncio.sleep(0.02)
            await here.until(lambda: not here.cluster.waiting)  # the node is closed for the hand-over
            assert await settle(here, again) == []
            await cancelled(tasks)
            assert former is not here.agent
            await here.until_offered(GPU_MEMORY, 640)
        assert here.overbooked() == []
        await here.until(lambda: len(here.agent.parts.allocation_state.device_table) == 60)
        assert all(len(holding.devices) == 2 for holding in here.agent.parts.allocation_state.device_table)


@pytest.mark.anyio
@pytest.mark.requirement("G1")
async def test_no_pod_fails_while_agents_hand_over(short: Path) -> None:
    """Pods come all the time, agents come one after the other, and each pod runs at its first try."""
    async with scene(short, "share", (81920,) * 8) as here:
        await here.until_offered(GPU_MEMORY, 640)
        made, over = 0, asyncio.Event()

        async def make() -> None:
            nonlocal made
            while not over.is_set():
                pending = sum(pod.status.phase != "Running" for pod in here.cluster.pods.values())
                if pending < MOST_PENDING:  # a node takes no more pods than its kubelet is set to, however slow it is
                    here.cluster.create(simple_pod(f"p{made}", container(mem=1), init=(container("init", mem=2),)))
                    made += 1
                    if made > 250:
                        here.cluster.delete(f"default/p{made - 250}")
                await asyncio.sleep(0.05)

        making = asyncio.create_task(make())
        for _ in range(6):
            former, tasks = here.agent, here.running()
            await here.start_younger_agent()
            await here.until(lambda: here.agent.parts.links.kubelet.state.listening, SLOW_S)
            await here.until(lambda: HANDOVER_ANNOTATION not in here.cluster.node.metadata.annotations, SLOW_S)
            await cancelled(tasks)
            assert former is not here.agent
        over.set()
        await making
        await here.until(lambda: not here.cluster.waiting, SLOW_S)
        await here.until_running(len(here.cluster.pods), SLOW_S)
        assert made > 6
        assert here.failed == {}


@pytest.mark.anyio
async def test_a_hand_over_that_nobody_ends_is_ended(short: Path) -> None:
    """A successor that dies once it has closed the node leaves it to the agent that still serves it."""
    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        now = time.time()
        for until in (f"{now + 3:.0f}", "nonsense", "-1"):
            await here.cluster.patch_node({"metadata": {"annotations": {HANDOVER_ANNOTATION: until}}})
            assert HANDOVER_ANNOTATION in here.cluster.node.metadata.annotations
            await here.until(lambda: HANDOVER_ANNOTATION not in here.cluster.node.metadata.annotations)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)


@pytest.mark.anyio
async def test_the_runtime_gets_the_gpus_by_cdi_too(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        uid = here.pod("default/a").metadata.uid
        assert here.kubelet.pods[uid].containers["main"].cdi == {"gputile.io/gpu=GPU-0"}
        spec = json.loads((short / "cdi" / "gputile.io-gpu.json").read_text())
        assert [device["name"] for device in spec["devices"]] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]


@pytest.mark.anyio
async def test_a_checkpoint_that_cannot_be_written_is_written_later(short: Path) -> None:
    """What was released while the disk refused is not there again after the agent's next start."""
    async with scene(short) as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        uid = here.pod("default/a").metadata.uid
        checkpoint = here.host_paths.state / "checkpoint.json"
        await here.until(lambda: uid in checkpoint.read_text())
        in_the_way = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}")
        in_the_way.mkdir()  # where the next one would be written first
        here.kubelet.finish(uid)
        here.cluster.delete("default/a")
        await here.until(lambda: not len(here.agent.parts.allocation_state.device_table))
        await asyncio.sleep(0.5)
        assert uid in checkpoint.read_text()
        in_the_way.rmdir()
        await here.until(lambda: uid not in checkpoint.read_text())


@pytest.mark.anyio
@pytest.mark.requirement("B6")
async def test_a_disk_that_is_full_keeps_no_news_from_the_kubelet(short: Path) -> None:
    """An unhealthy GPU leaves all the same, and what was not written down is written later."""
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        checkpoint = here.host_paths.state / "checkpoint.json"
        in_the_way = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}")
        in_the_way.mkdir()
        before = checkpoint.stat().st_ino if checkpoint.exists() else 0
        well = here.monitor.seen
        unhealthy = Health({"GPU-0": HealthState(healthy=False, reason="XID 79")})
        here.monitor.seen, here.monitor.changed = Observation(well.machine, unhealthy), True
        await here.until_offered(GPU_MEMORY, 45)
        in_the_way.rmdir()
        here.cluster.label(**{"some/label": "that changes"})
        await here.until(lambda: checkpoint.exists() and checkpoint.stat().st_ino != before)


@pytest.mark.anyio
async def test_a_round_that_takes_for_ever_is_given_up(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway ends an agent that asks it nothing for 90 s, however well it is."""
    monkeypatch.setattr(agent, "RECONCILE_EVERY_S", 0.1)
    monkeypatch.setattr(agent, "ROUND_WITHIN_S", 0.2)

    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        tries = 0

        async def never_answers(*_: object) -> Pod:
            nonlocal tries
            tries += 1
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(here.cluster, "annotate", never_answers)  # the API server
        here.cluster.create(simple_pod("hand", container(mem=4)), node=NODE)
        await here.until(lambda: tries > 2)
