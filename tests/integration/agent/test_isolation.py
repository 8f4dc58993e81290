"""What the agent writes for a container is what the library holds it to."""

import asyncio
import sys
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY, Mode
from gputile.node.agent import container_start
from gputile.node.agent.container_start import NotYet
from gputile.node.agent.node_config import LIBRARY_MODES
from gputile.node.isolation.library import USAGE, LibraryMissing
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.fakes.cuda import FakeGpus
from tests.integration.agent.scene import scene
from tests.native.container import Container

MODES = sorted(mode.value for mode in LIBRARY_MODES)


@pytest.mark.anyio
@pytest.mark.requirement("M4", "M5", "U3")
async def test_a_container_of_an_isolated_mode(short: Path) -> None:
    """2 GiB asked for are 2 GiB to CUDA, by the files that the agent mounts; no other mode gets them."""
    for number, mode in enumerate([*MODES, Mode.SHARE.value]):
        async with scene(short / str(number), mode) as here:
            await here.until_offered(GPU_MEMORY, 60)
            core = {"core": 10} if mode == Mode.CORE_MEM.value else {}
            here.cluster.create(simple_pod("a", container(mem=2, asks=core)))
            await here.until_running(1)
            mounts = here.kubelet.pods[here.pod("default/a").metadata.uid].containers["main"].mounts
            library = mounts.get("/etc/gputile/libgputile-cuda.so")
            assert (library is not None) == (mode in MODES)
            if library is None:
                continue
            out = await asyncio.to_thread(_ask_cuda, short / str(number), mounts, here.gpus("default/a")[0])
            assert out == "(2048, 2048) 2\n"


@pytest.mark.anyio
@pytest.mark.requirement("M4")
async def test_what_others_have_beside_the_files_of_containers_stays(short: Path) -> None:
    """The directory may be one that others use too, /run say."""
    async with scene(short, "cgpu") as here:
        others = here.host_paths.usage / "others"
        others.write_text("a")
        here.host_paths.usage.chmod(0o755)
        await here.until_offered(GPU_MEMORY, 60)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        here.cluster.delete("default/a")
        await here.until(lambda: not list((here.host_paths.usage / USAGE).iterdir()))
        assert others.exists()
        assert here.host_paths.usage.stat().st_mode & 0o777 == 0o755
        assert (here.host_paths.usage / USAGE).stat().st_mode & 0o777 == 0o700


@pytest.mark.anyio
@pytest.mark.requirement("M4")
@pytest.mark.parametrize("remembered", [True, False])
async def test_an_answer_without_the_library_starts_nothing_for_good(
    short: Path, monkeypatch: pytest.MonkeyPatch, *, remembered: bool
) -> None:
    """The kubelet keeps it, while the node can isolate again and through the agent's death."""

    def missing() -> Path:
        raise LibraryMissing("this gputile has no library")

    async with scene(short, "cgpu") as here:
        await here.until_offered(GPU_MEMORY, 60)
        with monkeypatch.context() as without:
            without.setattr(container_start, "library_path", missing)
            here.cluster.create(simple_pod("a", container(mem=2)))
            uid = here.pod("default/a").metadata.uid
            await here.until(lambda: uid in here.kubelet.pods and here.kubelet.pods[uid].admitted)
        here.cluster.create(simple_pod("b", container(mem=2)))
        await here.until_running(1)
        if not remembered:
            await here.stop_agent()
            (here.host_paths.state / "checkpoint.json").unlink()
            await here.until_offered(GPU_MEMORY, 0)  # the kubelet refuses pods until the new ones have registered
            await here.start_agent()
            await here.until_offered(GPU_MEMORY, 60)
        await asyncio.sleep(2.0)  # the kubelet tries again and again
        assert here.kubelet.pods[uid].containers == {}
        ids = next(iter(here.kubelet.manager.given[uid, "main"].values())).ids
        with pytest.raises(NotYet, match=r"does not start, .* without .*: delete the pod, so that it is admitted"):
            await here.agent.handler.prestart(GPU_MEMORY, tuple(ids))
        here.cluster.delete("default/a")
        here.cluster.create(simple_pod("a", container(mem=2)))
        await here.until_running(2)


@pytest.mark.anyio
@pytest.mark.requirement("B1", "M4")
async def test_the_next_pod_waits_for_what_is_left_of_one_that_was_deleted_by_force(short: Path) -> None:
    """Its object and its devices are gone, and its process still has the GPU's memory."""
    async with scene(short, "cgpu", (15 * 1024,)) as here:
        await here.until_offered(GPU_MEMORY, 15)
        here.cluster.create(simple_pod("a", container(mem=15)))
        await here.until_running(1)
        mounts = here.kubelet.pods[here.pod("default/a").metadata.uid].containers["main"].mounts
        code = "from tests.native.client import *\ncuda = Cuda()\nprint(cuda.info(), flush=True)\ninput()"
        inside, variables = _container(short, mounts, here.gpus("default/a")[0])
        process = inside.start([sys.executable, "-c", code], **variables)
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "(15360, 15360)\n"
        here.cluster.delete("default/a")
        here.cluster.create(simple_pod("b", container(mem=15)))
        uid = here.pod("default/b").metadata.uid
        await here.until(lambda: uid in here.kubelet.pods and here.kubelet.pods[uid].admitted)
        is_there = Path(mounts["/etc/gputile/usage"]).exists
        for _ in range(20):  # rounds of comparing, too
            await asyncio.sleep(0.1)
            assert here.kubelet.pods[uid].containers == {}
            assert is_there()
        process.kill()
        await asyncio.to_thread(process.communicate)
        await here.until_running(1)
        await here.until(lambda: not is_there(), what="its file to go")


def _ask_cuda(scratch: Path, mounts: dict[str, str], gpu: str) -> str:
    """Run a CUDA program with what is mounted."""
    inside, variables = _container(scratch, mounts, gpu)
    code = "from tests.native.client import *\ncuda = Cuda()\nprint(cuda.info(), cuda.linear(2049))"
    return inside.run([sys.executable, "-c", code], **variables)


def _container(scratch: Path, mounts: dict[str, str], gpu: str) -> tuple[Container, dict[str, str]]:
    """Return a container with what is mounted, and its environment; the scene's GPU gets the name of the driver's."""
    directory, library = Path(mounts["/etc/gputile/allocation"]), mounts["/etc/gputile/libgputile-cuda.so"]
    for path in ("/etc/ld.so.preload", "/etc/ld-nix.so.preload"):
        assert Path(mounts[path]).read_text() == "/etc/gputile/libgputile-cuda.so\n"
    gpus, seen = FakeGpus(scratch, [15 * 1024]), scratch / "seen"
    seen.mkdir()
    limits = (directory / "limits").read_text()
    (seen / "limits").write_text(limits.replace(f"card {gpu} ", f"card {gpus.uuids[0]} "))
    (seen / "usage").symlink_to(mounts["/etc/gputile/usage"])
    variables = {"GPUTILE_DIRECTORY": str(seen), "LD_PRELOAD": library}
    return Container(scratch / "unused", gpus, {0: 1}), variables
