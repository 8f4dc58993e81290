"""Two hundred pods at once on eight GPUs, while agent and kubelet die and come back at random.

A pod that is refused because nobody answered the kubelet is the kubelet's own doing (it fails a pod for good when a
plugin is away) and is created again, as its controller would. A pod that the agent itself refuses is counted as lost.
"""

import asyncio
import random
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.core import Container, Pod
from gputile.api.well_known import GPU_COUNT_LABEL, GPU_MEMORY, TOPOLOGY_GPU, WHOLE_GPU
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.scene import Scene, scene

EVERYBODY = Configuration(trust=Trust(by="cluster"), max_pods_per_gpu=64)
NOBODY_ANSWERED = (
    "no healthy devices",
    "unavailable",
    "Cancelled",
    "CANCELLED",
    "closed",
    "connect",
    "Server",
    "Stream",
    "reset",
    "Cancelling",
)


def shared(choice: random.Random, name: str, *, core: bool = False, equal: bool = False) -> Pod:
    def size() -> int:
        return 2 if equal else choice.choice((1, 1, 2, 3, 5))

    def one(label: str, mem: int, *, sidecar: bool = False) -> Container:
        return container(label, sidecar=sidecar, mem=mem, asks={"core": 5} if core else {})

    namespace = f"ns-{choice.randrange(4)}"
    kind = choice.random()
    if kind < 0.15:
        return simple_pod(name, one("a", size()), one("b", size()), container("plain"), namespace=namespace)
    if kind < 0.35:
        inits = (one("init", size()), container("wait"))
        return simple_pod(name, one("main", size()), init=inits, namespace=namespace)
    if kind < 0.45:
        inits = (one("side", 1, sidecar=True), one("init", size()))
        return simple_pod(name, one("main", size()), init=inits, namespace=namespace)
    if kind < 0.55:
        gpus = choice.choice((2, 3))
        labels = {GPU_COUNT_LABEL: str(gpus)}
        limits = {"mem": gpus * size(), **({"core": 5 * gpus} if core else {})}
        return simple_pod(name, container("main", asks=limits), namespace=namespace, labels=labels)
    return simple_pod(name, one("main", size()), namespace=namespace)


async def chaos(here: Scene, choice: random.Random, rounds: int) -> None:
    for _ in range(rounds):
        await asyncio.sleep(choice.uniform(0.05, 0.7))
        if choice.random() < 0.5:
            await here.stop_agent()
            await asyncio.sleep(choice.uniform(0.0, 0.2))
            await here.start_agent()
        else:
            await here.stop_kubelet()
            await asyncio.sleep(choice.uniform(0.0, 0.2))
            await here.start_kubelet()


def create_again(here: Scene, again: dict[str, Pod]) -> list[str]:
    """Replace the pods that failed because nobody answered; return the reasons of the others."""
    refused = []
    for pod in list(here.cluster.pods.values()):
        reason = here.failed.get(pod.metadata.uid)
        if reason is None:
            continue
        if not any(word in reason for word in NOBODY_ANSWERED):
            refused.append(f"{pod.key}: {reason}")
        here.cluster.delete(pod.key)
        here.cluster.create(again[pod.key])
    return refused


async def settle(here: Scene, again: dict[str, Pod]) -> list[str]:
    """Let everything come to rest, with all pods running that have room; return the agent's own refusals."""
    refused: list[str] = []

    def there() -> bool:
        refused.extend(create_again(here, again))
        running = sum(pod.status.phase == "Running" for pod in here.cluster.pods.values())
        return running == len(again) - len(here.cluster.waiting)

    try:
        await here.until(there)
    except AssertionError as error:
        stuck = [pod for pod in here.cluster.pods.values() if pod.status.phase != "Running"]
        states = [(pod.key, pod.spec.node_name, here.kubelet.pods.get(pod.metadata.uid)) for pod in stuck[:3]]
        raise AssertionError(f"{len(stuck)} pods do not run, {refused=}: {states}") from error
    await here.until(lambda: not here.disagreements(), "ledger and kubelet should agree")
    return refused


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("seed", "mode", "count"), [(1, "cgpu", 200), (2, "core_mem", 60), (3, "share", 60), (4, "mps", 60)]
)
async def test_many_pods_at_once(short: Path, seed: int, mode: str, count: int) -> None:
    choice = random.Random(seed)
    async with scene(short, mode, (81920,) * 8, configuration=EVERYBODY, seed=seed) as here:
        await here.until_offered(GPU_MEMORY, 640)
        here.cluster.lag = 0.05
        pods = [shared(choice, f"p{i}", core=mode == "core_mem", equal=i % 2 == 0) for i in range(count)]
        again = {pod.key: pod for pod in pods}
        for pod in pods:
            here.cluster.create(pod)
        await chaos(here, choice, 6)
        refused = await settle(here, again)
        assert refused == []
        assert here.overbooked() == []
        assert len(here.cluster.waiting) < len(pods) // 4


@pytest.mark.anyio
@pytest.mark.parametrize(("mode", "resource"), [("default", WHOLE_GPU), ("topology", TOPOLOGY_GPU)])
async def test_whole_gpus_come_and_go(short: Path, mode: str, resource: str) -> None:
    choice = random.Random(7)
    async with scene(short, mode, (81920,) * 8, seed=7) as here:
        await here.until_offered(resource, 8)
        here.cluster.lag = 0.02
        again: dict[str, Pod] = {}
        for i in range(40):
            gpus = choice.choice((1, 1, 2, 3))
            inits = (container("init", asks={resource: choice.choice((1, 2))}),) if i % 3 == 0 else ()
            pod = simple_pod(f"w{i}", container(asks={resource: gpus}), init=inits)
            again[pod.key] = pod
            here.cluster.create(pod)
        refused: list[str] = []
        while here.cluster.pods:
            refused += create_again(here, again)
            await asyncio.sleep(0.1)
            running = [pod for pod in here.cluster.pods.values() if pod.status.phase == "Running"]
            if not running:
                continue
            seen = [here.kubelet.pods[pod.metadata.uid] for pod in running]
            last = [gave.ids for s in seen for n, gave in s.containers.items() if gave.phase != "init"]
            ids = [i for given in last for group in given.values() for i in group]
            assert len(ids) == len(set(ids))
            await here.until(lambda: not here.disagreements(), "ledger and kubelet should agree")
            for pod in running[: choice.randrange(1, 3)]:
                here.kubelet.finish(pod.metadata.uid)
                here.cluster.delete(pod.key)
        assert refused == []
