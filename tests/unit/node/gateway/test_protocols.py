"""The generated modules speak the kubelet's wire format."""

import pytest
from google.protobuf.message import Message

from gputile.node.gateway.protocols import deviceplugin_v1beta1_pb2 as deviceplugin
from gputile.node.gateway.protocols import podresources_v1_pb2 as podresources
from tests.fakes.protocols import deviceplugin_v1beta1_pb2_grpc as deviceplugin_grpc
from tests.fakes.protocols import podresources_v1_pb2_grpc as podresources_grpc


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (
            deviceplugin.RegisterRequest(
                version="v1beta1",
                endpoint="s",
                resource_name="a/b",
                options=deviceplugin.DevicePluginOptions(
                    pre_start_required=True, get_preferred_allocation_available=True
                ),
            ),
            b"\x0a\x07v1beta1\x12\x01s\x1a\x03a/b\x22\x04\x08\x01\x10\x01",
        ),
        (
            deviceplugin.ListAndWatchResponse(
                devices=[
                    deviceplugin.Device(
                        ID="g0-1",
                        health="Healthy",
                        topology=deviceplugin.TopologyInfo(nodes=[deviceplugin.NUMANode(ID=1)]),
                    )
                ]
            ),
            b"\x0a\x15\x0a\x04g0-1\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01",
        ),
        (
            deviceplugin.ContainerAllocateResponse(
                envs={"K": "v"},
                mounts=[deviceplugin.Mount(container_path="c", host_path="h", read_only=True)],
                devices=[deviceplugin.DeviceSpec(container_path="c", host_path="h", permissions="rw")],
                annotations={"A": "b"},
                cdi_devices=[deviceplugin.CDIDevice(name="n")],
            ),
            b"\x0a\x06\x0a\x01K\x12\x01v\x12\x08\x0a\x01c\x12\x01h\x18\x01\x1a\x0a\x0a\x01c\x12\x01h\x1a\x02rw"
            b"\x22\x06\x0a\x01A\x12\x01b\x2a\x03\x0a\x01n",
        ),
        (
            deviceplugin.ContainerPreferredAllocationRequest(
                available_deviceIDs=["a"], must_include_deviceIDs=["b"], allocation_size=3
            ),
            b"\x0a\x01a\x12\x01b\x18\x03",
        ),
        (
            podresources.ListPodResourcesResponse(
                pod_resources=[
                    podresources.PodResources(
                        name="p",
                        namespace="n",
                        containers=[
                            podresources.ContainerResources(
                                name="c",
                                devices=[podresources.ContainerDevices(resource_name="r", device_ids=["g0-1"])],
                            )
                        ],
                    )
                ]
            ),
            b"\x0a\x16\x0a\x01p\x12\x01n\x1a\x0e\x0a\x01c\x12\x09\x0a\x01r\x12\x04g0-1",
        ),
        (podresources.ClaimResource(driver_name="d", share_id=""), b"\x12\x01d\x2a\x00"),
    ],
)
def test_messages_have_the_field_numbers_of_the_kubelet(message: Message, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


def test_services_have_the_paths_of_the_kubelet() -> None:
    assert deviceplugin.DESCRIPTOR.services_by_name["Registration"].full_name == "v1beta1.Registration"
    calls = {
        deviceplugin_grpc.DevicePluginServicer: {
            "GetDevicePluginOptions",
            "ListAndWatch",
            "GetPreferredAllocation",
            "Allocate",
            "PreStartContainer",
        },
        podresources_grpc.PodResourcesListerServicer: {"List", "GetAllocatableResources", "Get"},
    }
    for servicer, names in calls.items():
        assert {name for name in vars(servicer) if not name.startswith("_")} == names
    service = deviceplugin.DESCRIPTOR.services_by_name["DevicePlugin"]
    assert service.full_name == "v1beta1.DevicePlugin"
    assert podresources.DESCRIPTOR.services_by_name["PodResourcesLister"].full_name == "v1.PodResourcesLister"
