"""Pods, nodes and an extender's parts, built the same way in every test here."""

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Container, Node, ObjectMeta, Pod, PodSpec, ResourceRequirements
from gputile.api.well_known import GPU_MEMORY, INVENTORY_ANNOTATION, MODE_LABEL
from gputile.core.devices.inventory import Gpu, Inventory, encode_inventory
from gputile.core.ledger.ledger import Ledger


def gpu_node(name: str, gpus: int = 2, mib: int = 15 * 1024, mode: str = "share") -> Node:
    inventory = Inventory(tuple(Gpu(i, f"GPU-{name}-{i}", mib, "T4") for i in range(gpus)))
    return Node(
        metadata=ObjectMeta(
            name=name, labels={MODE_LABEL: mode}, annotations={INVENTORY_ANNOTATION: encode_inventory(inventory)}
        )
    )


def gpu_pod(
    name: str, units: int = 5, *, uid: str = "", namespace: str = "default", priority: int | None = None
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=uid or f"uid-{name}"),
        spec=PodSpec(
            containers=(Container(name="main", resources=ResourceRequirements(limits={GPU_MEMORY: str(units)})),),
            priority=priority,
        ),
    )


def ledger_of(*nodes: Node) -> Ledger:
    ledger = Ledger(Configuration())
    for node in nodes:
        ledger.apply_node(node)
    return ledger
