"""The slim objects read claims as the API server stores them."""

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.api.resource_claims import AllocatedDevice, ResourceClaim, claims_of, device_name, gpu_index
from gputile.core.devices.inventory import MOST_MIB

CLAIM = b"""{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
 "metadata": {"name": "c", "namespace": "b", "uid": "u", "finalizers": ["resource.kubernetes.io/delete-protection"]},
 "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gputile-share",
   "allocationMode": "ExactCount", "count": 1, "capacity": {"requests": {"memory": "8Gi"}}}}]}},
 "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "v"}, {"resource": "podgroups", "name": "g"}],
  "allocation": {"allocationTimestamp": "2030-01-01T00:00:00Z",
   "nodeSelector": {"nodeSelectorTerms": [{"matchFields": []}]},
   "devices": {"results": [
    {"request": "nic", "driver": "net.example.com", "pool": "node-b", "device": "eth0"},
    {"request": "gpu", "driver": "gpu.gputile.io", "pool": "node-b", "device": "gpu-1", "shareID": "s",
     "consumedCapacity": {"cores": "100", "memory": "8Gi", "pods": "1"}}]}}}}"""


def test_a_claim_tells_what_it_asks_for_and_what_of_gputile_it_got() -> None:
    claim = msgspec.json.decode(CLAIM, type=ResourceClaim)
    assert claim.key == "b/c"
    (request,) = claim.spec.devices.requests
    assert request.exactly is not None
    assert request.exactly.capacity is not None
    assert request.exactly.capacity.requests == {"memory": "8Gi"}
    (gpu,) = claim.gpus
    assert (gpu.pool, gpu_index(gpu.device), gpu.mib, gpu.percent, gpu.share_id) == ("node-b", 1, 8192, 100, "s")
    assert [each.name for each in claim.pods] == ["p"]


@pytest.mark.parametrize(
    ("memory", "mib"), [("1Mi", 1), ("1048577", 2), ("500m", 1), ("0", 0), ("-1Gi", 0), ("lots", 0), (2**30, 1024)]
)
def test_memory_is_counted_in_mib_and_never_too_little(memory: str | int, mib: int) -> None:
    assert AllocatedDevice(consumed_capacity={"memory": memory}).mib == mib


def test_forged_amounts_are_more_than_a_gpu_has_and_can_be_added_up() -> None:
    forged = AllocatedDevice(consumed_capacity={"memory": "1e300", "cores": "9E"})
    assert MOST_MIB <= forged.mib < 2**32
    assert 100 < forged.percent < 2**32


def test_a_device_is_named_after_the_index_of_its_gpu() -> None:
    assert [gpu_index(device_name(index)) for index in (0, 7, 63)] == [0, 7, 63]
    assert [gpu_index(name) for name in ("gpu-", "gpu--1", "gpu-1x", "nic-1", "1", "gpu-1000")] == [-1] * 6


def test_a_pod_names_its_claims_and_those_that_were_made_for_it() -> None:
    pod = msgspec.json.decode(
        b"""{"spec": {"resourceClaims": [{"name": "a", "resourceClaimName": "mine"},
         {"name": "b", "resourceClaimTemplateName": "t"}, {"name": "c", "resourceClaimTemplateName": "t"}]},
         "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-x7"}, {"name": "d"}]}}""",
        type=Pod,
    )
    assert claims_of(pod) == ["mine", "p-b-x7"]
