"""Who holds which device IDs is found the same way by index as by looking at everybody."""

from hypothesis import given
from hypothesis import strategies as st

from gputile.api.well_known import GPU_CORE, GPU_MEMORY
from gputile.core.devices.request import Phase
from gputile.node.agent.state.device_ids import encode
from gputile.node.agent.state.device_stage import DeviceEvent
from gputile.node.agent.state.device_table import DeviceTable
from gputile.node.agent.state.pod_devices import ContainerDevices, PodDevices
from tests.fakes.devicetable import release

resources = st.sampled_from((GPU_MEMORY, GPU_CORE))
device_ids = st.lists(st.builds(encode, st.integers(0, 1), st.integers(0, 3)), max_size=4, unique=True)
devices = st.builds(
    ContainerDevices, st.sampled_from("ab"), st.just(Phase.APP), resources, device_ids.map(tuple), st.just("")
)
uids = st.sampled_from("xyz")
pods = st.builds(lambda uid, held: holding_of(uid, *held), uids, st.lists(devices, max_size=3))


def holding_of(uid: str, *held: ContainerDevices) -> PodDevices:
    return PodDevices(uid, "n", uid, unit_mib=1024, mode="share", trust_group="n", since_ns=0, devices=held)


@given(st.lists(st.one_of(pods, uids), max_size=12), resources, device_ids)
def test_holders_are_those_that_have_one_of_the_ids(
    deeds: list[PodDevices | str], resource: str, wanted: list[str]
) -> None:
    held = DeviceTable()
    for deed in deeds:
        if isinstance(deed, PodDevices):
            held.apply(DeviceEvent.ANSWERED, deed)
        else:
            release(held, deed)
    found = [h for h in held if any(p.resource == resource and not set(wanted).isdisjoint(p.ids) for p in h.devices)]
    assert held.holders(resource, wanted) == found
    again = DeviceTable(held)
    assert again.holders(resource, wanted) == found


def test_a_holding_that_is_replaced_holds_what_it_holds_now() -> None:
    held, devices = DeviceTable(), ContainerDevices("a", Phase.APP, GPU_MEMORY, ("g0-00001",), "")
    held.apply(DeviceEvent.ANSWERED, holding_of("x", devices))
    assert [h.uid for h in held.holders(GPU_MEMORY, ["g0-00001"])] == ["x"]
    held.apply(DeviceEvent.ANSWERED, holding_of("x"))
    assert held.holders(GPU_MEMORY, ["g0-00001"]) == []
    release(held, "x")
    release(held, "x")
    assert len(held) == 0
