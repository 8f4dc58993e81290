"""Builds clusters of any size in memory, with nodes of eight shared GPUs and small pods."""

import random
from collections.abc import Iterator
from itertools import cycle
from typing import Literal

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Node, ObjectMeta, Pod, PodSpec, ResourceRequirements
from gputile.api.well_known import (
    ALLOCATION_ANNOTATION,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    PLACEMENT_LABEL,
)
from gputile.core.devices.allocation import encode_allocation
from gputile.core.devices.inventory import Gpu, Inventory, encode_inventory
from gputile.core.devices.request import Request, parse_request
from gputile.core.ledger.booking import Booking
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.placement_engine import Decision, PlacementEngine

Placement = Literal["binpack", "spread", "packing"]
GPUS, GPU_MIB, UNIT_MIB = 8, 15 * 1024, 1024


def node_name(number: int) -> str:
    """Return a node name that resembles the names of cloud providers."""
    return f"ip-10-{number // 65536}-{number // 256 % 256}-{number % 256}.internal"


def gpu_node(number: int, placement: Placement = "binpack", gpu_mib: int = GPU_MIB) -> Node:
    """Return a node with eight GPUs. Every second node spreads pods, unless ``placement`` is
    packing.
    """
    name = node_name(number)
    gpus = tuple(
        Gpu(i, f"GPU-{number:08x}-0000-0000-{i:012x}", gpu_mib, "Tesla-V100") for i in range(GPUS)
    )
    label = placement if placement == "packing" else "spread" if number % 2 else "binpack"
    labels = {MODE_LABEL: "cgpu", PLACEMENT_LABEL: label}
    annotations = {INVENTORY_ANNOTATION: encode_inventory(Inventory(gpus))}
    return Node(metadata=ObjectMeta(name=name, labels=labels, annotations=annotations))


def gpu_pod(number: int, units: int) -> Pod:
    """Return a pod that requests memory of one GPU."""
    name = f"pod-{number}"
    resources = ResourceRequirements(limits={GPU_MEMORY: str(units)})
    return Pod(
        metadata=ObjectMeta(
            name=name, namespace="bench", uid=f"{number:08x}-0000-4000-8000-000000000000"
        ),
        spec=PodSpec(containers=(Container(name="main", resources=resources),)),
    )


def request_for(units: int) -> Request:
    """Return the request of a ``gpu_pod``."""
    request = parse_request(gpu_pod(0, units), UNIT_MIB)
    assert request is not None
    return request


def booking_for(engine: PlacementEngine, number: int, units: int, node: str) -> Booking | None:
    """Return the booking of a ``gpu_pod`` on a node, or None if the pod does not fit."""
    pod = gpu_pod(number, units)
    request = request_for(units)
    decision = engine.decide(request, node, number)
    return decision.booking(pod, request, 0.0) if isinstance(decision, Decision) else None


def filled(
    nodes: int, pods: int, seed: int = 1, placement: Placement = "binpack"
) -> tuple[PlacementEngine, list[str]]:
    """Return the engine of a cluster with this many nodes and pods, and the nodes' names."""
    ledger = Ledger(Configuration(placement=placement))
    engine = PlacementEngine(ledger)
    names = [node_name(i) for i in range(nodes)]
    for i in range(nodes):
        ledger.apply_node(gpu_node(i, placement))
    random_ = random.Random(seed)
    placed = 0
    for node in cycle(names):
        if placed == pods:
            return engine, names
        booking = booking_for(engine, placed, random_.randint(1, 6), node)
        if booking is not None:
            ledger.assume(booking)
            placed += 1
    return engine, names


def bound_pods(ledger: Ledger) -> Iterator[Pod]:
    """Yield the pods of a ledger's bookings as the API server stores them."""
    for number, booking in enumerate(ledger.bookings()):
        pod = gpu_pod(number, booking.asked_mib // UNIT_MIB)
        pod.metadata.uid, pod.metadata.resource_version = booking.uid, "1"
        pod.spec.node_name = booking.node
        if booking.allocation is not None:
            pod.metadata.annotations = {
                ALLOCATION_ANNOTATION: encode_allocation(booking.allocation)
            }
        yield pod
