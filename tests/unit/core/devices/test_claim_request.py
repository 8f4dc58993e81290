"""What a claim asks for is read as kube-scheduler reads it, or refused with field, rule and remedy."""

from typing import Any

import pytest

from gputile.core.devices.claim_request import parse_claim
from gputile.core.devices.request import RequestError, RequestKind, Shape
from tests.fakes.claimbuilders import claim

pytestmark = pytest.mark.requirement("B8")
DISTINCT = [{"distinctAttribute": "gpu.gputile.io/uuid"}]


def share(mib: int, percent: int = 0, gpus: int = 1) -> Shape:
    return Shape(RequestKind.SHARED, gpus, mib, percent, unit_mib=1, by_claims=True)


@pytest.mark.parametrize(
    ("asked", "shapes"),
    [
        ({"memory": "8Gi"}, [share(8192)]),
        ({"memory": "8G"}, [share(7630)]),  # rounded up to the next MiB
        ({"memory": "1"}, [share(1)]),
        ({"memory": "4Gi", "cores": "42"}, [share(4096, 45)]),
        ({"request": {"capacity": {"requests": {"memory": "4Gi", "cores": "1", "pods": "1"}}}}, [share(4096, 5)]),
        ({"memory": "4Gi", "count": 2}, [share(4096), share(4096)]),  # perhaps of one GPU
        ({"memory": "4Gi", "count": 2, "constraints": DISTINCT}, [share(4096, gpus=2)]),
        ({"memory": "4Gi", "count": 2, "constraints": [{**DISTINCT[0], "requests": ["other"]}]}, [share(4096)] * 2),
        ({"devices": "gputile-gpu", "count": 4}, [Shape(RequestKind.WHOLE, 4, by_claims=True)]),
        ({"devices": "gputile-gpu", "memory": "40Gi"}, [Shape(RequestKind.WHOLE, 1, by_claims=True)]),
        ({"devices": "somebody-elses", "memory": "x"}, []),
    ],
)
def test_a_claim_is_read_in_its_normal_form(asked: dict[str, Any], shapes: list[Shape]) -> None:
    assert parse_claim(claim(**asked)) == tuple(shapes)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "capacity.requests: without memory it gets all of a GPU: add memory, or ask for class gputile-gpu"),
        ({"memory": "0"}, "capacity.requests.memory is 0: ask for more than 0, or remove it"),
        ({"memory": "-1Gi"}, "capacity.requests.memory is -1Gi: ask for more than 0"),
        ({"memory": "8GB"}, "capacity.requests.memory: '8GB' is not a quantity; did you mean 8G?"),
        ({"memory": "1Ei"}, "are more than any GPU has: ask for less"),
        ({"memory": "1Gi", "cores": "101"}, "capacity.requests.cores: a GPU has 100 percent of compute: ask for less"),
        (
            {"request": {"capacity": {"requests": {"memory": "1", "pods": "2"}}}},
            "capacity.requests.pods: a claim counts as one pod of its GPU: remove it",
        ),
        ({"gpu.gputile.io/memory": "1Gi"}, "no GPU has a capacity of the name gpu.gputile.io/memory: write memory"),
        ({"memory": "1Gi", "sm": "1"}, "no GPU has a capacity of the name sm: a GPU has memory and cores"),
        (
            {"memory": "1Gi", "request": {"adminAccess": True}},
            "it would use a GPU that is booked for others: remove it",
        ),
        ({"memory": "1Gi", "request": {"allocationMode": "All"}}, "depends on the node: set count to a number of GPUs"),
        ({"devices": "gputile-gpu", "count": 65}, "count is 65: ask for 1 to 64 GPUs"),
    ],
)
def test_what_can_never_be_served_names_field_rule_and_remedy(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_claim(claim("mine", **asked))
    assert str(caught.value).startswith("claim mine: spec.devices.requests[gpu].")
    assert said in str(caught.value)


def test_of_alternatives_the_first_is_read() -> None:
    found = claim(memory="1Gi")
    request = found.spec.devices.requests[0]
    assert request.exactly is not None
    first, second = claim(memory="2Gi"), claim(devices="gputile-gpu")
    request.first_available = tuple(
        each.spec.devices.requests[0].exactly  # type: ignore[misc]
        for each in (first, second)
    )
    request.exactly = None
    assert parse_claim(found) == (share(2048),)
