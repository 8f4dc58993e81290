"""Processes that are kept running: the pauses between their runs, and how they end."""

import asyncio
import signal
import sys

import pytest

from gputile.support.process_supervision import Restarts, end


@pytest.mark.anyio
async def test_pauses_grow_until_a_run_was_steady(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever keeps a process from running: the next try comes, and not at once."""
    runs = iter(["ended", "refused", "ended", "ended", "steady", "ended"])
    now, pauses = 0.0, list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> str:
        nonlocal now
        found = next(runs, None)
        if found is None:
            raise RuntimeError("the test is over")
        now += 61.0 if found == "steady" else 59.0
        if found == "refused":
            raise OSError("no more processes")
        return found

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(RuntimeError, match="over"):
        await Restarts("it", first=1.0, longest=5.0, steady_after=60.0).keep(run)
    assert pauses == [2.0, 4.0, 5.0, 5.0, 1.0, 2.0]
    assert "it cannot be started: no more processes; again in 4.0 s" in caplog.text
    assert "it steady; again in 1.0 s" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import time; print(flush=True); time.sleep(600)", -signal.SIGTERM),
        (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)",
            -signal.SIGKILL,
        ),
    ],
    ids=["asked", "forced"],
)
async def test_a_process_ends_when_asked_or_by_force(program: str, status: int) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()  # it runs by now
    await end(process, process.terminate, 120.0 if status == -signal.SIGTERM else 0.1)
    assert process.returncode == status
