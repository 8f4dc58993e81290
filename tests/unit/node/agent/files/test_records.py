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
from gputile.node.agent.allocation import DeviceAllocator
from gputile.node.agent.allocation_state import AllocationState
from gputile.node.agent.answers import CONTAINER_DIRECTORY
from gputile.node.agent.container_start import NotYet, only_for, prestart
from gputile.node.agent.device_ids import encode
from gputile.node.agent.device_table import DeviceEvent, DeviceTable
from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.files.kubelet_checkpoint import FILE_NAME
from gputile.node.agent.files.records import Records
from gputile.node.agent.files.usage_files import UsageFiles
from gputile.node.agent.node_config import EffectiveMode, NodeConfig
from gputile.node.agent.pod_devices import DeviceOwner
from gputile.node.gateway.link import NodeLock
from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as pb
from tests.fakes.devicetable import let_start
from tests.fakes.oddfiles import ODD
from tests.unit.node.agent.test_given_twice import known, listed, node


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
def test_a_container_starts_again_only_as_that_of_its_own_pod_while_nobody_knows_the_pod() -> None:
    """An agent has just started: only what was noted tells that the kubelet has the pod, a static one, by another UID.

    Another pod may have had its name.
    """
    ids = (encode(0, 0), encode(0, 1))
    state = node(Mode.CGPU, known("a", GPU_MEMORY, 2))
    DeviceAllocator(state, listed(GPU_MEMORY, a=()), 0.0, 1).allocate(GPU_MEMORY, ids)
    state.pods.clear()
    for pod_devices in state.device_table:
        state.device_table.apply(DeviceEvent.ANSWERED, msgspec.structs.replace(pod_devices, kubelet_uid="hash-of-a"))
    for _ in range(2):  # before it is let start, and afterwards
        found = prestart(state, GPU_MEMORY, ids, listed(GPU_MEMORY, a=ids), 2)
        assert only_for(state, found, frozenset({DeviceOwner("hash-of-a", "main")})) == found
        with pytest.raises(NotYet, match="container main of the pod with UID another"):
            only_for(state, found, frozenset({DeviceOwner("another", "main")}))
        let_start(state.device_table, found[0].directory)


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
