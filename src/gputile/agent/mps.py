"""NVIDIA's MPS control daemons, one for each card of a node in mode ``mps`` (M7).

A daemon has one pipe directory, which its clients find by ``CUDA_MPS_PIPE_DIRECTORY``; with one a card, a failing
client takes down those of its own card only. Each client's memory is limited by its own environment, see ``answer``.
Source: NVIDIA's "Multi-Process Service", chapters "Environment Variables" and "Device Memory Limit".
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PROGRAM: Final = "nvidia-cuda-mps-control"
PIPE_ENV: Final = "CUDA_MPS_PIPE_DIRECTORY"
LIMIT_ENV: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
CONTAINER_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks unless it is told otherwise
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
STEADY_AFTER_S = 0.5
STOP_WITHIN_S = 3.0


class MpsDaemons:
    """Keeps the daemons of the wanted cards running; ``problem`` says what is in the way, "" if nothing is."""

    def __init__(self, directory: Path, program: str = PROGRAM) -> None:
        self._directory = directory
        self._program = program
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._up: set[str] = set()
        self._down: dict[str, str] = {}

    @property
    def problem(self) -> str:
        """Why no memory can be offered in mode ``mps``: the program is missing, or no daemon has come up."""
        if shutil.which(self._program) is None:
            return f"{self._program} is not installed on this node: install NVIDIA's MPS or choose another mode"
        if self._down and not self._up:
            uuid, why = next(iter(self._down.items()))
            return f"the MPS control daemon of {uuid} does not run: {why}"
        return ""

    def pipes(self, uuid: str) -> Path:
        """Return the pipe directory of a card."""
        return self._directory / uuid / "pipe"

    def want(self, uuids: Iterable[str]) -> None:
        """Run the daemons of just these cards."""
        wanted = set(uuids) if shutil.which(self._program) is not None else set()
        for uuid in self._tasks.keys() - wanted:
            self._tasks.pop(uuid).cancel()
            self._down.pop(uuid, None)
        for uuid in wanted - self._tasks.keys():
            self._tasks[uuid] = asyncio.get_running_loop().create_task(self._supervise(uuid))

    async def stop(self) -> None:
        """Stop all daemons."""
        tasks = list(self._tasks.values())
        self.want(())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _supervise(self, uuid: str) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                lasted = await self._run(uuid)
            except OSError as error:
                self._down[uuid], lasted = str(error), 0.0
            pause = FIRST_PAUSE_S if lasted > LONGEST_PAUSE_S else min(2 * pause, LONGEST_PAUSE_S)
            log.error("the MPS control daemon of %s: %s; again in %s s", uuid, self._down.get(uuid), pause)
            await asyncio.sleep(pause)

    async def _run(self, uuid: str) -> float:
        """Run one daemon until it ends; return for how many seconds it did."""
        loop, logs = asyncio.get_running_loop(), self._directory / uuid / "log"
        for directory in (self.pipes(uuid), logs):
            directory.mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            self._program, "-f", env=self._environment(uuid, logs), stdin=asyncio.subprocess.DEVNULL
        )
        begin = loop.time()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STEADY_AFTER_S)
            if process.returncode is None:
                self._up.add(uuid)
                self._down.pop(uuid, None)
            code = await process.wait()
            self._down[uuid] = f"it ended with status {code}"
            return loop.time() - begin
        finally:
            self._up.discard(uuid)
            if process.returncode is None:
                await _end(process)

    def _environment(self, uuid: str, logs: Path) -> Mapping[str, str]:
        return {
            "PATH": "/usr/local/nvidia/bin:/usr/local/bin:/usr/bin:/bin",
            "CUDA_VISIBLE_DEVICES": uuid,
            PIPE_ENV: str(self.pipes(uuid)),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
        }


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
    except TimeoutError:
        process.kill()
        await process.wait()
