"""The pods that come: of all kinds, of several namespaces, each with an end of its own; all from one seed."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gputile.api.well_known import (
    GANG_NAME_LABEL,
    GANG_SIZE_LABEL,
    GPU_CORE,
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    TOPOLOGY_GPU,
    WHOLE_GPU,
)
from tests.e2e.extender import pod_body
from tests.e2e.node import random_probe_pod
from tests.soak.system.judge import Rules

NAMESPACES = ("soak-a", "soak-b", "soak-c", "soak-d")
GROUPS = {"ab": ["soak-a", "soak-b"]}  # the others trust nobody
REAL_NODE = "real"
RULES = Rules(
    pods_per_gpu=16,
    groups={name: group for group, names in GROUPS.items() for name in names},
    kubelets=frozenset({REAL_NODE}),
)
REAL, PLAYED = {"soak.example.com/node": "real"}, {"soak.example.com/node": "played"}
IMPOSSIBLE_UNITS = 500  # more than any GPU has


@dataclass(frozen=True)
class Planned:
    """A pod to create. ``seconds`` after it runs (a gang's: after all of them do) it ends as ``end`` says.

    ``end``: "succeeds" by itself, "deleted" or "forced" by us; one that is not ``possible`` is deleted when it has said
    why it is pending. ``gang`` is the name of its gang, ``size`` how many start together.
    """

    kind: str
    namespace: str
    name: str
    body: Mapping[str, Any]
    seconds: float
    end: str
    real: bool = False
    gang: str = ""
    size: int = 0
    possible: bool = True

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def workload(seed: int, count: int, real_every: int, longest_s: float = 40.0) -> Iterator[Planned]:
    """Yield ``count`` pods, those of a gang in one go; every ``real_every``-th is for the real node, 0 for none.

    Some of those on the real node live for ``longest_s``.
    """
    choice = random.Random(f"workload {seed}")
    given = 0
    while given < count:
        name = f"p{given:05}"
        if real_every and given % real_every == 0:
            batch: Sequence[Planned] = [_real(choice, name, longest_s)]
        elif choice.random() < 0.03:
            batch = _gang(choice, given)
        else:
            batch = [_single(choice, name)]
        given += len(batch)
        yield from batch


def _real(choice: random.Random, name: str, longest_s: float) -> Planned:
    body = random_probe_pod(choice, name, equal=choice.random() < 0.3)
    spec = {**body["spec"], "nodeSelector": REAL}
    end = choice.choices(("deleted", "forced"), (3, 1))[0]
    planned = Planned("on the real node", choice.choice(NAMESPACES), name, {**body, "spec": spec}, 0, end, real=True)
    return replace(planned, seconds=longest_s if choice.random() < 0.15 else choice.uniform(5, 40))


def _end(choice: random.Random) -> str:
    return choice.choices(("succeeds", "deleted", "forced"), (16, 3, 1))[0]


def _single(choice: random.Random, name: str) -> Planned:
    makers: dict[str, tuple[int, Callable[[random.Random, str], dict[str, Any]]]] = {
        "shared": (45, _shared),
        "several containers": (10, _several),
        "init containers": (10, _inits),
        "several GPUs": (6, _gpus),
        "memory and compute": (10, _core),
        "whole GPUs": (8, _whole),
        "best-connected GPUs": (5, _topology),
        "too large": (1, _too_large),
    }
    kind = choice.choices(list(makers), [weight for weight, _ in makers.values()])[0]
    body = makers[kind][1](choice, name)
    seconds = choice.expovariate(1 / 5) + 1
    namespace = choice.choice(NAMESPACES)
    return Planned(kind, namespace, name, body, seconds, _end(choice), possible=kind != "too large")


def _gang(choice: random.Random, number: int) -> list[Planned]:
    size, namespace, name = choice.randint(2, 6), choice.choice(NAMESPACES), f"g{number:05}"
    labels = {GANG_NAME_LABEL: name, GANG_SIZE_LABEL: str(size)}
    units, seconds, possible = choice.choice((1, 1, 2, 8)), choice.uniform(2, 8), choice.random() > 0.05
    bodies = (
        pod_body(
            f"{name}-{i}", {GPU_MEMORY: units if possible else IMPOSSIBLE_UNITS}, labels=labels, nodeSelector=PLAYED
        )
        for i in range(size)
    )
    kind = "in gangs" if possible else "in gangs too large"
    return [
        Planned(kind, namespace, f"{name}-{i}", body, seconds, "succeeds", gang=name, size=size, possible=possible)
        for i, body in enumerate(bodies)
    ]


def _shared(choice: random.Random, name: str) -> dict[str, Any]:
    return pod_body(name, {GPU_MEMORY: choice.choice((1, 1, 1, 2, 2, 3, 4, 8, 14))}, nodeSelector=PLAYED)


def _container(name: str, units: int, **more: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {GPU_MEMORY: str(units)}}} if units else {}
    return {"name": name, "image": "registry.example.com/x:1", **limits, **more}


def _several(choice: random.Random, name: str) -> dict[str, Any]:
    containers = [_container("a", choice.randint(1, 3)), _container("b", choice.randint(1, 3)), _container("plain", 0)]
    return pod_body(name, {}, containers=containers, nodeSelector=PLAYED)


def _inits(choice: random.Random, name: str) -> dict[str, Any]:
    inits = [_container("init", choice.randint(1, 4)), _container("wait", 0)]
    if choice.random() < 0.5:
        inits.insert(0, _container("side", 1, restartPolicy="Always"))
    containers = [_container("main", choice.randint(1, 3))]
    return pod_body(name, {}, containers=containers, initContainers=inits, nodeSelector=PLAYED)


def _gpus(choice: random.Random, name: str) -> dict[str, Any]:
    gpus = choice.choice((2, 2, 4))
    limits = {GPU_MEMORY: gpus * choice.randint(1, 3)}
    return pod_body(name, limits, labels={GPU_COUNT_LABEL: str(gpus)}, nodeSelector=PLAYED)


def _core(choice: random.Random, name: str) -> dict[str, Any]:
    limits = {GPU_MEMORY: choice.randint(1, 4), GPU_CORE: 5 * choice.randint(1, 10)}
    return pod_body(name, limits, nodeSelector=PLAYED)


def _whole(choice: random.Random, name: str) -> dict[str, Any]:
    return pod_body(name, {WHOLE_GPU: choice.choice((1, 1, 2, 4))}, nodeSelector=PLAYED)


def _topology(choice: random.Random, name: str) -> dict[str, Any]:
    return pod_body(name, {TOPOLOGY_GPU: choice.choice((1, 2, 4))}, nodeSelector=PLAYED)


def _too_large(choice: random.Random, name: str) -> dict[str, Any]:
    return pod_body(name, {GPU_MEMORY: IMPOSSIBLE_UNITS}, nodeSelector=PLAYED)
