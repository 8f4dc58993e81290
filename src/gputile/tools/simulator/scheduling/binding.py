"""Executes a Binding as the API server does."""

import msgspec

from gputile.api.core import Pod
from gputile.core.ledger.events import PodApplied
from gputile.core.ledger.ledger import Ledger
from gputile.core.scheduling.decision import Decision


def settle(ledger: Ledger, pod: Pod, node: str) -> None:
    """Record in the ledger that a pod without GPUs is on its node."""
    ledger.apply(PodApplied(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))))


def bind(ledger: Ledger, pod: Pod, decision: Decision) -> None:
    """Record the pod in the ledger as the API server stores it when it executes the Binding."""
    binding = decision.binding(pod)
    annotations = pod.metadata.annotations | binding.metadata.annotations
    bound = msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations=annotations),
        spec=msgspec.structs.replace(pod.spec, node_name=binding.target.name),
    )
    ledger.apply(PodApplied(bound))
