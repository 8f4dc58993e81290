"""What the agent writes for a container is what the library holds it to."""

import asyncio
import sys
from pathlib import Path

from gputile.agent.enforcement import ISOLATED
from gputile.api.wellknown import GPU_MEMORY, Mode
from tests.corebuilders import container
from tests.fakes.agentcluster import simple_pod
from tests.fakes.cuda import FakeGpus
from tests.integration.agent.scene import scene
from tests.native.container import Container

MODES = sorted(mode.value for mode in ISOLATED)


def test_a_container_of_an_isolated_mode(short: Path) -> None:
    """M4, M5, U3: 2 GiB asked for are 2 GiB to CUDA, by the files that the agent mounts; no other mode gets them."""

    async def main() -> None:
        for number, mode in enumerate([*MODES, Mode.SHARE.value]):
            async with scene(short / str(number), mode) as here:
                await here.until_offered(GPU_MEMORY, 60)
                core = {"core": 10} if mode == Mode.CORE_MEM.value else {}
                here.cluster.create(simple_pod("a", container(mem=2, **core)))
                await here.until_running(1)
                mounts = here.kubelet.pods[here.pod("default/a").metadata.uid].containers["main"].mounts
                library = mounts.get("/etc/gputile/libgputile-cuda.so")
                assert (library is not None) == (mode in MODES)
                if library is None:
                    continue
                out = await asyncio.to_thread(_ask_cuda, short / str(number), mounts, here.cards("default/a")[0])
                assert out == "(2048, 2048) 2\n"

    asyncio.run(main())


def _ask_cuda(scratch: Path, mounts: dict[str, str], card: str) -> str:
    """Run a CUDA program with what is mounted; the scene's card gets the name of the driver's."""
    directory, library = Path(mounts["/etc/gputile/allocation"]), mounts["/etc/gputile/libgputile-cuda.so"]
    assert Path(mounts["/etc/ld.so.preload"]).read_text() == "/etc/gputile/libgputile-cuda.so\n"
    assert Path(mounts["/etc/ld-nix.so.preload"]).read_text() == "/etc/gputile/libgputile-cuda.so\n"
    gpus = FakeGpus(scratch, [15 * 1024])
    limits = directory / "limits"
    limits.write_text(limits.read_text().replace(f"card {card} ", f"card {gpus.uuids[0]} "))
    code = "from tests.native.client import *\ncuda = Cuda()\nprint(cuda.info(), cuda.linear(2049))"
    inside = Container(scratch / "unused", gpus, {0: 1})
    seen = scratch / "seen"
    seen.mkdir()
    (seen / "limits").write_bytes(limits.read_bytes())
    (seen / "usage").symlink_to(mounts["/etc/gputile/usage"])
    return inside.run([sys.executable, "-c", code], GPUTILE_DIRECTORY=str(seen), LD_PRELOAD=library)
