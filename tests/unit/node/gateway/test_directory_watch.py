"""A socket that appears is seen at once, and nothing else is waited for."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gputile.node.gateway.sockets import DirectoryWatch

FOREVER_S = 3600.0


def is_socket(name: str) -> bool:
    return name.endswith(".sock")


async def seen(watch: DirectoryWatch, change: Callable[[], object]) -> bool:
    """Return whether a change ends the waiting; another one that is relevant ends it in any case."""
    waiting = asyncio.create_task(watch.changed(FOREVER_S))
    await asyncio.sleep(0.01)
    change()
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    waiting.cancel()
    return bool(done)


@pytest.mark.anyio
async def test_names_that_matter_are_seen_and_others_are_not(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path, is_socket)
    try:
        assert await seen(watch, (tmp_path / "a.sock").touch)
        assert not await seen(watch, (tmp_path / "checkpoint").touch)
        assert await seen(watch, (tmp_path / "a.sock").unlink)
        (tmp_path / "b").touch()
        assert await seen(watch, lambda: (tmp_path / "b").rename(tmp_path / "b.sock"))
    finally:
        watch.close()


@pytest.mark.anyio
async def test_a_directory_that_comes_later_or_again_is_watched(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    watch = DirectoryWatch(directory, is_socket)
    try:
        await watch.changed(0.01)
        for _ in range(2):
            directory.mkdir()
            await watch.changed(0.01)
            assert await seen(watch, (directory / "kubelet.sock").touch)
            assert await seen(watch, lambda: shutil.rmtree(directory))
            await watch.changed(0.01)
    finally:
        watch.close()


@pytest.mark.anyio
async def test_where_nothing_can_be_watched_waiting_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = DirectoryWatch(tmp_path, is_socket)
    monkeypatch.setattr(watch.libc, "inotify_init1", lambda _: -1)
    async with asyncio.timeout(5.0):
        await watch.changed(0.01)
    watch.close()
