"""Processes that are kept running: the pauses between their runs, and how they end."""

import asyncio

import pytest

from gputile.support.process_supervision import Restarts


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
        await Restarts("it", first=1.0, longest=5.0, steady_after=60.0).supervise(run)
    assert pauses == [2.0, 4.0, 5.0, 5.0, 1.0, 2.0]
    assert "it cannot be started: no more processes; restarting in 4.0 s" in caplog.text
    assert "it steady; restarting in 1.0 s" in caplog.text
