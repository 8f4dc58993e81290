"""When the slice is written, and what is said where an API server cannot store it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gputile.api.core import Node, ObjectMeta
from gputile.api.resource_claims import ResourceSlice
from gputile.api.well_known import Mode
from gputile.kube.errors import ConnectionFailed, Forbidden, KubeError, NotFound
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.api_server import Wakeup
from gputile.node.agent.claims.publisher import APPLY_EVERY_S, KUBELET_STARTS_FOR_S, SlicePublisher
from gputile.node.agent.kubelet import KubeletLink
from gputile.node.agent.settings import HostPaths
from gputile.node.gateway import kubelet_pb2 as dra
from gputile.node.gateway.link import FromAgent, FromGateway, MessageChannel, ServeClaims, State
from tests.fakes.agentcluster import NODE, FakeCluster
from tests.fakes.claims import claims_node
from tests.integration.agent.scene import machine

PATIENCE_S = 60.0
MACHINE = machine([8192, 8192])
pytestmark = [pytest.mark.anyio, pytest.mark.requirement("B8")]


class SliceStore(FakeCluster):
    """Stores slices as an API server does, whose ``gate`` may drop something of each. ``fails`` is what it raises."""

    def __init__(self) -> None:
        super().__init__()
        self.slices: dict[str, ResourceSlice] = {}
        self.writes = 0
        self.gate: Callable[[ResourceSlice], ResourceSlice] = lambda wanted: wanted
        self.fails: KubeError | None = None
        self.dry_runs = 0

    async def apply_slice(self, wanted: ResourceSlice, *, dry_run: bool = False) -> ResourceSlice:
        if self.fails is not None:
            raise self.fails
        if dry_run:
            self.dry_runs += 1
            return self.gate(wanted)
        self.writes += 1
        stored = self.slices[wanted.metadata.name] = self.gate(wanted)
        return stored

    async def delete_slice(self, name: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.slices.pop(name, None)


class Heard(MessageChannel[FromGateway]):
    """What the gateway hears."""

    def __init__(self) -> None:
        self.health: list[bytes | None] = []

    def send(self, message: FromAgent | FromGateway) -> None:
        assert isinstance(message, ServeClaims)
        self.health.append(message.health)


class Scene:
    def __init__(self, directory: Path, mode: Mode = Mode.CGPU, *, claims: bool = True) -> None:
        self.state: AllocationState = claims_node(mode, MACHINE, claims=claims)
        self.state.node = Node(metadata=ObjectMeta(name=NODE, uid="node"))
        (directory / "plugins_registry").mkdir()
        paths = HostPaths(pod_resources=directory / "pod-resources" / "kubelet.sock", cdi=directory / "cdi")
        self.store, self.heard, self.wakeup = SliceStore(), Heard(), Wakeup()
        self.kubelet = KubeletLink(self.heard)
        self.publisher = SlicePublisher(self.state, self.store, self.kubelet, paths, self.wakeup)

    async def publish(self) -> str:
        """Publish; return what the condition says, "" where nothing is wrong."""
        await self.publisher.publish(MACHINE)
        condition = self.publisher.condition()
        return condition.message if condition.status == "True" else ""


async def test_a_slice_is_applied_once_a_minute_whatever_has_become_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    here = Scene(tmp_path)
    for _ in range(3):
        assert await here.publish() == ""
    assert here.store.writes == 1
    here.store.slices.clear()
    now[0] += APPLY_EVERY_S
    await here.publish()
    await here.publish()
    assert here.store.writes == 2
    assert len(here.store.slices) == 1


async def test_a_slice_is_applied_every_few_seconds_after_a_kubelet_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes all slices of its node, before or after it has registered the driver."""
    monkeypatch.setattr("gputile.node.agent.claims.publisher.LOOK_EVERY_S", 0.001)
    here = Scene(tmp_path)
    await here.publish()
    await here.publish()
    assert here.store.writes == 1
    watching = asyncio.create_task(here.publisher.watch_kubelet())
    here.kubelet.state = State(epoch=time.monotonic())
    for _ in range(2):
        here.store.slices.clear()
        async with asyncio.timeout(PATIENCE_S):
            await here.wakeup.wait(2 * PATIENCE_S)
        await here.publish()
        assert len(here.store.slices) == 1
    here.kubelet.state = State(epoch=time.monotonic() - KUBELET_STARTS_FOR_S)
    await here.publish()
    assert here.store.writes == 3
    watching.cancel()


async def test_the_kubelet_is_served_with_the_health_of_each_gpu(tmp_path: Path) -> None:
    here = Scene(tmp_path)
    await here.publish()
    await here.publish()
    (health,) = here.heard.health
    found = dra.NodeWatchResourcesResponse.FromString(health or b"")
    assert [(each.device.pool_name, each.device.device_name, each.health) for each in found.devices] == [
        (NODE, "gpu-0", dra.HEALTHY),
        (NODE, "gpu-1", dra.HEALTHY),
    ]


async def test_a_node_of_extended_resources_writes_nothing_and_is_no_driver(tmp_path: Path) -> None:
    here = Scene(tmp_path, claims=False)
    assert await here.publish() == ""
    assert (here.store.writes, here.heard.health) == (0, [])


async def test_without_shares_a_shared_node_offers_nothing_and_says_which_gate(tmp_path: Path) -> None:
    here = Scene(tmp_path)
    here.store.gate = lambda wanted: without(wanted, "allow_multiple_allocations", None)
    for _ in range(2):
        text = await here.publish()
        assert "DRAConsumableCapacity" in text
        assert "allowMultipleAllocations" in text
    assert (here.store.slices, here.store.writes, here.store.dry_runs) == ({}, 0, 1)


async def test_a_gate_that_is_enabled_later_is_found_without_a_slice_that_is_stored_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    here = Scene(tmp_path)
    here.store.gate = lambda wanted: without(wanted, "allow_multiple_allocations", None)
    for _ in range(3):
        await here.publish()
        now[0] += APPLY_EVERY_S
    assert "DRAConsumableCapacity" in await here.publish()
    assert (here.store.writes, here.store.slices) == (0, {})
    here.store.gate = lambda wanted: wanted
    now[0] += APPLY_EVERY_S
    assert await here.publish() == ""
    assert len(here.store.slices) == 1


async def test_without_taints_sick_gpus_are_left_out(tmp_path: Path) -> None:
    here = Scene(tmp_path)
    gpus = here.state.node_config.inventory.gpus
    sick = (msgspec.structs.replace(gpus[0], healthy=False), gpus[1])
    inventory = msgspec.structs.replace(here.state.node_config.inventory, gpus=sick)
    object.__setattr__(here.state.node_config, "inventory", inventory)
    here.store.gate = lambda wanted: without(wanted, "taints", ())
    await here.publish()
    assert await here.publish() == ""
    (stored,) = here.store.slices.values()
    assert [each.name for each in stored.spec.devices] == ["gpu-1"]


def without(found: ResourceSlice, field: str, value: object) -> ResourceSlice:
    devices = tuple(msgspec.structs.replace(each, **{field: value}) for each in found.spec.devices)
    return msgspec.structs.replace(found, spec=msgspec.structs.replace(found.spec, devices=devices))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotFound(404, "NotFound", "the server could not find the requested resource"), "1.34"),
        (Forbidden(403, "Forbidden", "a policy refuses it"), "a policy refuses it"),
        (ConnectionFailed("the API server is away"), ""),
    ],
)
async def test_what_an_api_server_answers_is_said(tmp_path: Path, error: KubeError, text: str) -> None:
    here = Scene(tmp_path)
    here.store.fails = error
    said = await here.publish()
    assert text in said
    assert bool(text) == bool(said)
    here.store.fails = None
    assert await here.publish() == ""
    assert len(here.store.slices) == 1


async def test_a_node_that_changes_its_mode_takes_its_slice_back(tmp_path: Path) -> None:
    here = Scene(tmp_path)
    await here.publish()
    here.state.decided = replace(here.state.decided, closing=True)
    await here.publish()
    assert here.store.slices == {}


async def test_a_refusal_is_said_no_more_once_the_node_is_not_by_claims(tmp_path: Path) -> None:
    """The chart gives the agent no right to slices by default."""
    here = Scene(tmp_path)
    by_claims, here.store.fails = here.state.node_config, Forbidden(403, "Forbidden", "no right to slices")
    assert "no right" in await here.publish()
    mode = replace(by_claims.effective_mode, claims=False)
    here.state.node_config = replace(by_claims, effective_mode=mode)
    assert await here.publish() == ""


async def test_a_node_whose_gpus_another_plugin_serves_offers_none(tmp_path: Path) -> None:
    here = Scene(tmp_path)
    await here.publish()
    here.state.node_config = replace(here.state.node_config, withheld="another plugin serves them")
    await here.publish()
    assert here.store.slices == {}


async def test_what_the_agent_lacks_is_said(tmp_path: Path) -> None:
    here = Scene(tmp_path)
    (tmp_path / "plugins_registry").rmdir()
    assert "plugins_registry" in await here.publish()
    assert here.store.slices == {}
