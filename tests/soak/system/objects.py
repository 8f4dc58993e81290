"""Pods and nodes as the judge reads them: from the API server's JSON alone, with no code of gputile.

What is written on pods and nodes is in docs/reference/annotations.md; this is a second reader of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MEMORY, PERCENT = "aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage"
WHOLE = ("nvidia.com/gpu", "aliyun.com/gpu")
ASKED = (MEMORY, PERCENT, *WHOLE)
Json = Mapping[str, Any]


class Unreadable(Exception):
    """What is written there breaks the format."""


@dataclass(frozen=True)
class Held:
    """What a pod, or a container, holds of one GPU."""

    uuid: str
    mib: int
    percent: int


@dataclass(frozen=True)
class Claim:
    """An allocation as a pod's annotation has it."""

    gpus: tuple[Held, ...]
    containers: Mapping[str, tuple[Held, ...]]
    whole: bool
    mode: str
    unit_mib: int


@dataclass(frozen=True)
class Asked:
    """What a pod asks for at its peak: units of memory, percent, whole GPUs; ``gpus`` is over how many it goes."""

    units: int
    percent: int
    whole: int
    gpus: int

    @property
    def anything(self) -> bool:
        return bool(self.units or self.percent or self.whole)


def key_of(thing: Json) -> str:
    meta = thing["metadata"]
    return f"{meta.get('namespace', '')}/{meta['name']}"


def phase_of(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def finished(pod: Json) -> bool:
    return phase_of(pod) in ("Succeeded", "Failed")


def node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))


def annotation(thing: Json, name: str) -> str | None:
    found: str | None = thing["metadata"].get("annotations", {}).get(name)
    return found


def claim_of(pod: Json) -> Claim | None:
    """Return the allocation that the pod says it has, None where it says nothing.

    Raises:
        Unreadable: it is none.
    """
    text = annotation(pod, "gputile.io/allocation")
    if text is None:
        return None
    try:
        body = json.loads(text)
        if body["version"] != 1:
            raise Unreadable(f"version {body['version']}")
        return Claim(
            gpus=_held(body["cards"]),
            containers={name: _held(gpus) for name, gpus in body["containers"].items()},
            whole=bool(body.get("whole", False)),
            mode=str(body.get("mode", "")),
            unit_mib=int(body["unit_mib"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _held(gpus: list[dict[str, Any]]) -> tuple[Held, ...]:
    return tuple(Held(str(c["uuid"]), int(c["mib"]), int(c.get("percent", 0))) for c in gpus)


def gpus_of(node: Json) -> dict[str, int]:
    """Return the MiB of each GPU of a node by UUID; nothing where no agent has reported."""
    text = annotation(node, "gputile.io/inventory")
    return {} if text is None else {str(c["uuid"]): int(c["mib"]) for c in json.loads(text)["cards"]}


def asked_by(pod: Json) -> Asked:
    """Return what a pod asks for: all containers together, or an init container with the sidecars before it."""
    spec = pod["spec"]
    peak = dict.fromkeys(ASKED, 0)
    for name in ASKED:
        sidecars = most = 0
        for container in spec.get("initContainers", []):
            amount = _limit(container, name)
            if container.get("restartPolicy") == "Always":
                sidecars += amount
                most = max(most, sidecars)
            else:
                most = max(most, sidecars + amount)
        together = sidecars + sum(_limit(container, name) for container in spec["containers"])
        peak[name] = max(most, together)
    whole = sum(peak[name] for name in WHOLE)
    spread = int(pod["metadata"].get("labels", {}).get("aliyun.com/gpu-count", "1"))
    return Asked(peak[MEMORY], peak[PERCENT], whole, whole or spread)


def _limit(container: Json, name: str) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(name, "0"))


def reason_pending(pod: Json) -> str:
    """Return why a pod has no node yet, as it says itself: its gates, or what the scheduler wrote; "" if nothing."""
    gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]
    if gates:
        return f"gated by {', '.join(gates)}"
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""
