"""Runs the arbiter of GPU time as a child process, and sends each container's share to it."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Set
from typing import Final

from gputile.node.agent.files.allocation_files import NodeFiles
from gputile.node.agent.time_shares import TimeShares
from gputile.node.arbiter.messages import Assignment, Spent, Used, decode_line, encode_line
from gputile.support.process_supervision import Restarts, end

log = logging.getLogger(__name__)

LOCK: Final = "arbiter.lock"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
STEADY_AFTER_S = 60.0
STOP_WITHIN_S = 3.0
MOST_LINE = 1024 * 1024


class ArbiterProcess:
    """Runs an arbiter while the node has containers to serve.

    ``shares`` returns the time shares of all containers, or of the containers on the given GPUs.
    ``spent`` is the arbiter's last report. It maps the name of an allocation directory and the UUID
    of a GPU to the GPU time that was used since the arbiter's start.
    """

    def __init__(self, store: NodeFiles, shares: Callable[[Set[str] | None], TimeShares]) -> None:
        self.spent: Mapping[tuple[str, str], Spent] = {}
        self._store = store
        self._shares = shares
        self._assignment = Assignment()
        self._files: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.process: asyncio.subprocess.Process | None = None

    def starting(self, directory: str, gpus: Set[str]) -> None:
        """Write the share file of a container that is about to start on ``gpus``.

        ``refresh`` updates the files of other containers. Raises OSError if the file cannot be
        written.
        """
        content = self._shares(gpus).files.get(directory)
        if content is not None and self._store.write_share(directory, content):
            self._files[directory] = content

    def refresh(self) -> None:
        """Update the arbiter and the share files. Raises OSError if a file cannot be written."""
        if not self._store.mine:
            self._assign(Assignment())
            return
        shares = self._shares(None)
        self._assign(shares.assignment)
        for name, content in shares.files.items():
            if self._files.get(name) != content and self._store.write_share(name, content):
                self._files[name] = content
        for name in self._files.keys() - shares.files.keys():
            del self._files[name]

    async def stop(self) -> None:
        """Stop the arbiter. Containers then limit themselves to the shares in their files."""
        self._end_task()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            task.cancel()

    def _assign(self, assignment: Assignment) -> None:
        changed, self._assignment = assignment != self._assignment, assignment
        if not assignment.containers:
            self._end_task()
        elif self._task is None:
            restarts = Restarts(
                "the time arbiter",
                first=FIRST_PAUSE_S,
                longest=LONGEST_PAUSE_S,
                steady_after=STEADY_AFTER_S,
            )
            self._task = asyncio.get_running_loop().create_task(restarts.supervise(self._run))
        elif changed:
            self._send()

    def _send(self) -> None:
        stdin = self.process.stdin if self.process is not None else None
        if stdin is not None and not stdin.is_closing():
            stdin.write(encode_line(self._assignment))

    async def _run(self) -> str:
        lock = self._store.directory / LOCK
        command = (sys.executable, "-m", "gputile.node.arbiter", "--lock", lock)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, limit=MOST_LINE
        )
        self.process = process
        try:
            self._send()
            await self._listen(process)
            return f"ended with status {await process.wait()}"
        finally:
            self.process = None
            if process.returncode is None:
                await end(process, lambda: _close_input(process), STOP_WITHIN_S)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        while process.stdout is not None:
            try:
                line = await process.stdout.readline()
                if not line:
                    return
                used = decode_line(line, Used)
            except ValueError as error:  # readline also raises it for a line that is too long
                log.error("invalid report of the arbiter: %s", error)
                continue
            self.spent = {
                (path.rpartition("/")[2], uuid): spent
                for path, gpus in used.items()
                for uuid, spent in gpus.items()
            }


def _close_input(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
