"""Mode mps: a control daemon for each GPU, limits for each client, and nothing offered without the daemon."""

import os
from pathlib import Path

import anyio
import pytest

from gputile.api.config.v1alpha1 import Configuration, Trust
from gputile.api.well_known import (
    GPU_COUNT_LABEL,
    GPU_MEMORY,
    INVENTORY_ANNOTATION,
    MODE_LABEL,
    MPS_THREADS_ANNOTATION,
    ConditionType,
)
from gputile.core.devices.inventory import decode_inventory
from gputile.node.agent import mps
from gputile.node.agent.mps import LOGS, daemon_name
from tests.fakes.agentcluster import simple_pod
from tests.fakes.corebuilders import container
from tests.integration.agent.process import process_scene
from tests.integration.agent.scene import scene
from tests.localcluster.nosuid import nosuid_directory
from tests.localcluster.processes import command, daemons


def says(file: Path, text: str) -> bool:
    return file.exists() and text in file.read_text()


@pytest.mark.anyio
@pytest.mark.requirement("M7", "M10")
async def test_a_pod_on_two_gpus_has_one_daemon_for_both(short: Path) -> None:
    """A CUDA client has one pipe directory, and so one daemon."""
    async with scene(short, "mps", (15360, 15360)) as here:
        await here.until_offered(GPU_MEMORY, 30)
        annotations = {MPS_THREADS_ANNOTATION: "50"}
        pod = simple_pod("a", container(mem=8), labels={GPU_COUNT_LABEL: "2"}, annotations=annotations)
        here.cluster.create(pod)
        await here.until_running(1)
        uid = here.pod("default/a").metadata.uid
        environment = here.environment("default/a")
        assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M,1=4096M"
        assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
        host = here.kubelet.pods[uid].containers["main"].mounts[environment["CUDA_MPS_PIPE_DIRECTORY"]]
        name = daemon_name(("GPU-0", "GPU-1"))
        assert host == str(here.host_paths.state / "mps" / name / "pipe")
        await here.until(
            lambda: says(here.host_paths.state / LOGS / name / "env", "CUDA_VISIBLE_DEVICES=GPU-0,GPU-1\n")
        )


@pytest.mark.anyio
@pytest.mark.requirement("M7")
async def test_what_clients_make_a_daemon_write_takes_no_more_of_the_disk_than_is_set(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may connect as often as it likes, and each time a daemon writes some lines."""
    monkeypatch.setattr(mps, "MOST_LOG_BYTES", 64 * 1024)
    monkeypatch.setattr(mps, "LOOK_EVERY_S", 0.05)
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.install_mps(
            'cd "$CUDA_MPS_LOG_DIRECTORY"; head -c 1000000 /dev/zero > control.log; touch written; exec sleep 3600'
        )
        here.cluster.relabel({MODE_LABEL: "mps"})
        logs = here.host_paths.state / LOGS / "GPU-0"
        await here.until((logs / "written").exists)
        await here.until(lambda: (logs / "control.log").stat().st_blocks * 512 <= 64 * 1024)


@pytest.mark.anyio
async def test_a_daemon_that_ends_is_started_again_and_meanwhile_nothing_is_offered(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.install_mps("exit 3")
        here.cluster.relabel({MODE_LABEL: "mps"})
        await here.until(lambda: here.cluster.condition(ConditionType.MPS_PROBLEM).status == "True")
        assert "it ended with status 3" in here.cluster.condition(ConditionType.MPS_PROBLEM).message
        await here.until_offered(GPU_MEMORY, 0)
        here.install_mps()
        await here.until(lambda: here.kubelet.manager.allocatable()[GPU_MEMORY] == 60)


@pytest.mark.anyio
@pytest.mark.requirement("M7", "G1")
async def test_a_gpu_whose_daemon_does_not_run_takes_no_pods_beside_others_that_do(short: Path) -> None:
    async with scene(short, "share") as here:
        await here.until_offered(GPU_MEMORY, 60)
        here.install_mps('case "$CUDA_VISIBLE_DEVICES" in GPU-1) exit 3;; esac; exec sleep 3600')
        here.cluster.relabel({MODE_LABEL: "mps"})
        await here.until(lambda: here.kubelet.manager.allocatable().get(GPU_MEMORY) == 45)
        await here.until(lambda: here.cluster.condition(ConditionType.CARD_PROBLEM).status == "True")
        assert (
            "GPU 1 (GPU-1): its MPS control daemon does not run"
            in here.cluster.condition(ConditionType.CARD_PROBLEM).message
        )

        def unhealthy() -> list[int]:
            inventory = decode_inventory(here.cluster.node.metadata.annotations[INVENTORY_ANNOTATION])
            return [gpu.index for gpu in inventory.gpus if not gpu.healthy]

        await here.until(lambda: unhealthy() == [1])
        here.install_mps()
        await here.until(lambda: here.kubelet.manager.allocatable()[GPU_MEMORY] == 60)


@pytest.mark.anyio
@pytest.mark.requirement("M7")
async def test_daemons_end_with_an_agent_that_stops(short: Path) -> None:
    """They outlive one that is killed, as an end-to-end test shows."""
    configuration = Configuration(trust=Trust(by="cluster"))
    async with process_scene(short, {MODE_LABEL: "mps"}, [15360, 15360], configuration) as here:
        await here.until_offered(GPU_MEMORY, 30)
        await here.until(lambda: len(daemons(short / "state")) == 2)
        assert here.process is not None
        here.process.terminate()
        await here.process.wait()
        assert daemons(short / "state") == [], (short / "agent.log").read_text()[-1500:]


@pytest.mark.anyio
@pytest.mark.requirement("M7")
async def test_where_root_of_a_container_could_leave_a_program_for_the_node_no_daemon_runs(short: Path) -> None:
    """Containers can write to the pipes of their daemons, so these are on a file system that is mounted nosuid."""
    async with scene(short, "mps", (15360, 15360)) as here:
        await here.until_offered(GPU_MEMORY, 30)
        here.cluster.create(simple_pod("a", container(mem=4)))
        await here.until_running(1)
        uid = here.pod("default/a").metadata.uid
        pipes = Path(here.kubelet.pods[uid].containers["main"].mounts["/tmp/nvidia-mps"])
        assert os.statvfs(pipes).f_flag & os.ST_NOSUID
        assert (here.host_paths.state / "mps").stat().st_mode & 0o777 == 0o711  # servers run as users of containers
        safe, before = (here.host_paths.state / "mps").readlink(), daemons(here.host_paths.state)
        assert len(before) == 2
        (here.host_paths.state / "mps").unlink()
        (here.host_paths.state / "mps").mkdir()
        if os.statvfs(here.host_paths.state).f_flag & os.ST_NOSUID:
            pytest.skip("the directory for tests is mounted nosuid itself")
        here.cluster.relabel({MODE_LABEL: "mps", "again": ""})
        await here.until_offered(GPU_MEMORY, 0)
        await here.until(lambda: here.cluster.condition(ConditionType.MPS_PROBLEM).status == "True")
        assert "is not mounted nosuid" in here.cluster.condition(ConditionType.MPS_PROBLEM).message
        await here.until(lambda: not any(command(pid) for pid in before))
        (here.host_paths.state / "mps").rmdir()
        (here.host_paths.state / "mps").symlink_to(safe)
        here.cluster.relabel({MODE_LABEL: "mps"})
        await here.until_offered(GPU_MEMORY, 30)


@pytest.mark.anyio
@pytest.mark.requirement("M7")
async def test_what_a_container_leaves_among_the_pipes_is_gone_before_a_daemon_starts(short: Path) -> None:
    """Root in a container may replace a pipe by a link, through which the daemon would write as the node's root."""
    program, text = short / "mps", '#!/bin/sh\necho 1 > "$CUDA_MPS_PIPE_DIRECTORY/control.pid"; exec sleep 999\n'
    program.write_text(text)
    program.chmod(0o755)
    directory, gpus = nosuid_directory() / "mps", ("GPU-0",)
    first, second = (mps.MpsDaemons(directory, str(program)) for _ in range(2))
    (first.pipes(gpus) / "nested" / "deep").mkdir(parents=True)
    (first.pipes(gpus) / "control.pid").symlink_to(program)
    (first.pipes(gpus) / "directory").symlink_to(short)
    try:
        for each in (first, second):  # the second finds the daemon of the first, and its pipes
            each.want([gpus])
            with anyio.fail_after(30):
                await each.until_up(gpus)
                while [path.name for path in each.pipes(gpus).iterdir()] != ["control.pid"]:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
        assert program.read_text() == text
    finally:
        await first.stop()
        await second.stop()


@pytest.mark.anyio
@pytest.mark.requirement("M7")
async def test_where_sockets_would_have_names_that_are_too_long_the_node_says_so() -> None:
    """NVIDIA's daemon ends with status 1 there, and says nothing."""
    deep = nosuid_directory() / ("x" * 100) / "mps"
    daemons = mps.MpsDaemons(deep, "sh")
    daemons.want([("GPU-0",)])
    try:
        with anyio.fail_after(30):
            while daemons.problem is None:  # noqa: ASYNC110 - nobody tells when it is known
                await anyio.sleep(0.02)
        assert daemons.problem is not None
        assert "Linux allows 107: set a shorter directory" in daemons.problem
    finally:
        await daemons.stop()
