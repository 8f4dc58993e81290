"""What stands in the place of the kubelet's checkpoint, when it is read, and what is taken from it."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.well_known import GPU_MEMORY, MIRROR_ANNOTATION, Mode
from gputile.core.devices.inventory import Inventory
from gputile.core.devices.request import Phase
from gputile.node.agent.decisions.answers.allocate import CONTAINER_DIRECTORY
from gputile.node.agent.decisions.calls.allocation import DeviceAllocator
from gputile.node.agent.decisions.calls.container_start import NotYet, Start, only_for, prestart, unmatched
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.kubelet_checkpoint import FILE_NAME
from gputile.node.agent.files.records import Records
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.state.allocation_state import AllocationState
from gputile.node.agent.state.device_ids import encode
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.known_pods import known_pod
from gputile.node.agent.state.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.state.pod_devices import ContainerDevices, DeviceOwner, pod_devices_for, with_devices
from gputile.node.gateway.node_lock import NodeLock
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod
from tests.fakes.devicetable import let_start
from tests.oddfiles import ODD
from tests.unit.node.agent.decisions.ownership.test_given_twice import known, listed, node


def records_in(directory: Path) -> Records:
    claim = NodeLock(directory / "owner", "this agent")
    return Records(NodeFiles(directory / "state", claim, UsageFiles(directory / "usage")), directory)


def _entry(uid: str, name: str, ids: tuple[str, ...], directory: str) -> dict[str, object]:
    """Return what the kubelet writes down of a container that it told to mount an allocation directory."""
    mount = pb.Mount(container_path=CONTAINER_DIRECTORY, host_path=f"/state/allocations/{directory}")
    answer = base64.b64encode(pb.ContainerAllocateResponse(mounts=[mount]).SerializeToString()).decode()
    devices = {"ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ids}}
    return {"PodUID": uid, "ContainerName": name, "AllocResp": answer, **devices}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_tells_nothing_and_is_said_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    records = records_in(tmp_path)
    state = AllocationState(Configuration(), NodeConfig(Inventory(()), EffectiveMode(Mode.CGPU, 128)), DeviceTable())
    records.recover(state)
    assert not caplog.records, "there need not be one"
    ODD[kind](tmp_path / FILE_NAME)
    for _ in range(3):
        records.recover(state)
        assert records.owners(GPU_MEMORY, ("g0-00000",)) is None
    (said,) = caplog.records
    assert "the kubelet's checkpoint is not read: " in said.getMessage()
    assert not list(state.device_table)


@pytest.mark.requirement("M4", "B1")
@pytest.mark.parametrize("answer", [b"", None], ids=["its answer names no mounts", "its answer is not there"])
def test_a_pod_answered_before_it_was_known_has_its_devices_once(tmp_path: Path, answer: bytes | None) -> None:
    """The kubelet's checkpoint names it before the kubelet's list is looked at: it starts all the same."""
    ids = tuple(encode(0, slot) for slot in range(2))
    state, records = node(Mode.CGPU), records_in(tmp_path)
    grant, _ = DeviceAllocator(state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, ids)
    with pytest.raises(NotYet, match="has not said yet what pod default/a asks for"):
        prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids), 2)
    pod = known("a", GPU_MEMORY, 2)
    state.pods[pod.key] = pod
    entry = {"PodUID": pod.uid, "ContainerName": "main", "ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ids}}
    entry |= {"AllocResp": base64.b64encode(answer).decode()} if answer is not None else {}
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))
    records.recover(state)
    assert [(each.uid, len(each.devices)) for each in state.device_table] == [(pod.uid, 1)]
    assert [start.directory for start in prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids), 3)] == [
        grant.directory
    ]


@pytest.mark.requirement("M4", "B1")
def test_a_pod_answered_in_the_name_of_its_predecessor_has_its_devices_once(tmp_path: Path) -> None:
    """A pod that is deleted by force and created anew is admitted before the agent has heard of either."""
    ids = tuple(encode(0, slot) for slot in range(5))
    before, pod = known("a", GPU_MEMORY, 5), known("a", GPU_MEMORY, 5)
    pod = replace(
        pod, pod=msgspec.structs.replace(pod.pod, metadata=msgspec.structs.replace(pod.pod.metadata, uid="2"))
    )
    state, records = node(Mode.CGPU, before), records_in(tmp_path)
    grant, _ = DeviceAllocator(state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, ids)
    entry = {"PodUID": "2", "ContainerName": "main", "ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ids}}
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))
    state.pods[pod.key] = pod
    records.recover(state)
    assert [each.uid for each in state.device_table] == ["2"]
    (start,) = prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids), 2)
    assert start.directory == grant.directory


@pytest.mark.requirement("M4", "B1")
def test_a_pod_does_not_start_with_the_limits_of_the_one_before_it(tmp_path: Path) -> None:
    """It is created again under its name, with another amount, and the agent hears neither of that nor of a list."""
    ids, mine = tuple(encode(0, slot) for slot in range(5)), listed(GPU_MEMORY, a=tuple(encode(0, s) for s in range(5)))
    before, pod = known("a", GPU_MEMORY, 2), known("a", GPU_MEMORY, 5)
    meta = msgspec.structs.replace(pod.pod.metadata, uid="2")
    state, records = node(Mode.CGPU, before), records_in(tmp_path)
    grant, _ = DeviceAllocator(state, None, 0.0, 1).allocate(GPU_MEMORY, ids)
    assert records.owners(GPU_MEMORY, ids) == frozenset()
    entry = {"PodUID": "2", "ContainerName": "main", "ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ids}}
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))
    owners = records.owners(GPU_MEMORY, ids) or frozenset()
    with pytest.raises(NotYet, match="to container main of the pod with UID 2, of which"):
        only_for(state, prestart(state, GPU_MEMORY, ids, mine, 2), owners)
    state.pods[pod.key] = replace(pod, pod=msgspec.structs.replace(pod.pod, metadata=meta))
    (start,) = only_for(state, prestart(state, GPU_MEMORY, ids, mine, 3), owners)
    assert (start.directory, start.limits.uid, start.limits.gpus[0].mib) == (grant.directory, "2", 5 * 1024)


def started_by_nobody_known(noted: str) -> tuple[AllocationState, list[Start]]:
    """Return a node of which nobody knows the pods, and a container on it that was let start.

    ``noted`` is the UID by which its devices say that the kubelet has its pod.
    """
    ids = (encode(0, 0), encode(0, 1))
    state = node(Mode.CGPU, known("a", GPU_MEMORY, 2))
    DeviceAllocator(state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, ids)
    state.pods.clear()
    for pod_devices in state.device_table:
        state.device_table.apply(DeviceEvent.ANSWERED, msgspec.structs.replace(pod_devices, kubelet_uid=noted))
    found = prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids), 2)
    with pytest.raises(NotYet, match="container main of the pod with UID another"):
        only_for(state, found, frozenset({DeviceOwner("another", "main")}))
    let_start(state.device_table, found[0].directory)
    return state, found


@pytest.mark.requirement("M4", "B1")
@pytest.mark.parametrize("noted", ["hash-of-a", ""], ids=["a static pod", "by an agent of an earlier release"])
def test_a_container_starts_again_while_nobody_can_say_which_pod_it_is_of(noted: str) -> None:
    """An agent has just started: it does not know that the kubelet has the pod, a static one, by another UID."""
    state, found = started_by_nobody_known(noted)
    assert only_for(state, found, frozenset({DeviceOwner("hash-of-a", "main")})) == found


@pytest.mark.requirement("M4", "B1")
def test_a_container_does_not_start_with_the_limits_of_another_pod_that_had_its_name() -> None:
    """An agent has just started, and its devices are of a pod that the kubelet has by another UID."""
    state, found = started_by_nobody_known("uid-a")
    with pytest.raises(NotYet, match="container main of the pod with UID another"):
        only_for(state, found, frozenset({DeviceOwner("another", "main")}))


@pytest.mark.requirement("M4", "B1")
def test_a_container_does_not_start_before_its_limits_are_in_the_directory_that_it_mounts(tmp_path: Path) -> None:
    """The kubelet has kept another answer than the last one: it died before it wrote that down."""
    ids, pod = (encode(0, 0), encode(0, 1)), simple_pod("a", container(mem=2), init=(container("init", mem=2),))
    found = known_pod(
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid="uid-a")), Configuration()
    )
    state, records, listing = node(Mode.CGPU, found), records_in(tmp_path), listed(GPU_MEMORY, a=ids)
    for shown in ((), ()):
        DeviceAllocator(state, listed(GPU_MEMORY, a=shown), 0.0, 1).allocate(GPU_MEMORY, ids)
    entries = [_entry("uid-a", "init", ids, "kept"), _entry("uid-a", "main", ids, "uid-a-main")]
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}))
    owners = records.owners(GPU_MEMORY, ids) or frozenset()
    starts = prestart(state, GPU_MEMORY, ids, listing, 2)
    assert [owner.container for owner in unmatched(state, starts, owners)] == ["init"]
    with pytest.raises(NotYet, match="to container init of the pod with UID uid-a"):
        only_for(state, starts, owners)
    known_pods = dict(state.pods)
    state.pods.clear()  # as an old list of the API server's says
    records.recover(state)
    with pytest.raises(NotYet, match="to container init of the pod with UID uid-a"):
        only_for(state, prestart(state, GPU_MEMORY, ids, listing, 3), owners)
    state.pods.update(known_pods)
    records.recover(state)
    right = only_for(state, prestart(state, GPU_MEMORY, ids, listing, 4), owners)
    assert {(start.limits.container, start.directory) for start in right} == {("init", "kept"), ("main", "uid-a-main")}
    state.pods.clear()
    assert len(only_for(state, prestart(state, GPU_MEMORY, ids, listing, 5), owners)) == 2, "it is known who has them"


@pytest.mark.requirement("M4", "B1")
def test_what_an_init_container_has_is_what_the_kubelet_wrote_down(tmp_path: Path) -> None:
    """Its devices were mistaken for another container's, and no list shows them."""
    ids = tuple(encode(0, slot) for slot in range(3))
    pod = simple_pod("a", container("main", mem=2), init=(container("init", mem=3),))
    meta = msgspec.structs.replace(pod.metadata, uid="uid-a")
    found = known_pod(msgspec.structs.replace(pod, metadata=meta), Configuration())
    state, records = node(Mode.CGPU, found), records_in(tmp_path)
    mistaken = ContainerDevices("init", Phase.INIT, GPU_MEMORY, ids[1:])
    blank = pod_devices_for("uid-a", found, found.key, state.node_config, "default", 1)
    state.device_table.apply(DeviceEvent.ANSWERED, with_devices(blank, mistaken, state.node_config))
    entry = {"PodUID": "uid-a", "ContainerName": "init", "ResourceName": GPU_MEMORY, "DeviceIDs": {"-1": ids}}
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1}))
    records.recover(state)
    assert [devices.ids for each in state.device_table for devices in each.devices] == [ids]


@pytest.mark.requirement("M4", "B1")
def test_a_static_pod_is_recovered_by_the_uid_that_its_mirror_names(tmp_path: Path) -> None:
    """The kubelet knows a static pod by another UID than the API server. No mirror takes what another pod has."""
    ids, others = (tuple(encode(index, slot) for slot in range(2)) for index in range(2))
    static, other, forged = (known(name, GPU_MEMORY, 2) for name in ("a", "b", "c"))
    state, records = node(Mode.CGPU, other), records_in(tmp_path)
    for pod, says in ((static, "hash-of-a"), (forged, other.uid)):
        meta = msgspec.structs.replace(pod.pod.metadata, annotations={MIRROR_ANNOTATION: says})
        state.pods[pod.key] = replace(pod, pod=msgspec.structs.replace(pod.pod, metadata=meta))
    entries = [_entry("hash-of-a", "main", ids, "answered"), _entry(other.uid, "main", others, "another")]
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 1}))
    records.recover(state)
    assert {each.uid: each.devices[0].ids for each in state.device_table} == {static.uid: ids, other.uid: others}
    found = prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids, b=others), 3)
    (start,) = only_for(state, found, records.owners(GPU_MEMORY, ids) or frozenset())
    assert start.mounts == {CONTAINER_DIRECTORY: "/state/allocations/answered"}
