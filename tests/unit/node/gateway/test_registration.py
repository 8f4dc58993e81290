"""Sockets that appear are seen at once, what is offered is served, and one of two gateways serves the node."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from gputile.node.gateway.link import NodeLock, has_listener
from gputile.node.gateway.registration import Registrar, SocketWatch
from tests.conftest import HANGS_S

RESOURCE = "aliyun.com/gpu-mem"
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"


async def _carry(*_: object) -> bytes:
    await asyncio.sleep(30)
    return b""


@pytest.mark.anyio
@pytest.mark.requirement("G1")
async def test_what_is_offered_no_more_while_it_is_served_anew_is_not_served(tmp_path: Path) -> None:
    """A socket that answers without an owner would pass for another gateway's for ever."""

    def sockets() -> list[Path]:
        return list(tmp_path.glob("gputile-*"))

    registrar = Registrar(tmp_path, _carry)
    registrar.advertise([RESOURCE], {RESOURCE: b""})
    await registrar.reconcile()
    (first,) = sockets()
    channel = grpc.aio.insecure_channel(f"unix:{first}")
    allocate: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ALLOCATE)
    call = allocate(b"")  # so that stopping takes a moment
    await asyncio.sleep(0.2)
    first.unlink()  # a kubelet that starts removes all sockets
    reconciling = asyncio.create_task(registrar.reconcile())
    await asyncio.sleep(0.1)
    registrar.advertise([], {})
    await reconciling
    await registrar.reconcile()
    assert not any(has_listener(path) for path in sockets())
    assert not registrar.has_others()
    call.cancel()
    await channel.close()
    await registrar.stop()


FOREVER_S = 3600.0


async def seen(watch: SocketWatch, change: Callable[[], object]) -> bool:
    """Return whether a change ends the waiting."""
    waiting = asyncio.create_task(watch.changed(FOREVER_S))
    await asyncio.sleep(0.01)
    change()
    done, _ = await asyncio.wait({waiting}, timeout=HANGS_S)
    waiting.cancel()
    return bool(done)


@pytest.mark.anyio
async def test_sockets_that_come_and_go_are_seen(tmp_path: Path) -> None:
    watch = SocketWatch(tmp_path)
    try:
        assert await seen(watch, (tmp_path / "kubelet.sock").touch)
        assert await seen(watch, (tmp_path / "kubelet.sock").unlink)
        (tmp_path.parent / "b").touch()
        assert await seen(watch, lambda: (tmp_path.parent / "b").rename(tmp_path / "gputile-b.sock"))
    finally:
        watch.close()


@pytest.mark.anyio
async def test_a_directory_that_comes_later_or_again_is_watched(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    watch = SocketWatch(directory)
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
    watch = SocketWatch(tmp_path)
    monkeypatch.setattr(watch.libc, "inotify_init1", lambda _: -1)
    async with asyncio.timeout(HANGS_S):
        await watch.changed(0.01)
    watch.close()


def _put_away(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.requirement("B1")
@pytest.mark.parametrize("lose", [Path.unlink, _put_away], ids=["removed", "a directory"])
def test_the_older_one_does_not_serve_again_because_the_file_is_lost(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    file = tmp_path / "owner"
    older, younger = NodeLock(file, "older"), NodeLock(file, "younger")
    assert older.is_held, "nobody has claimed it"
    older.acquire()
    assert not younger.is_held
    younger.acquire()
    assert (older.is_held, younger.is_held) == (False, True)
    lose(file)
    assert (older.is_held, younger.is_held) == (False, True)


@pytest.mark.requirement("B1")
def test_a_gateway_that_is_alone_goes_on_without_the_file(tmp_path: Path) -> None:
    lock = NodeLock(tmp_path / "owner", "alone")
    lock.acquire()
    (tmp_path / "owner").unlink()
    assert lock.is_held


@pytest.mark.requirement("B1")
def test_a_full_disk_keeps_the_node_from_nobody(tmp_path: Path) -> None:
    first, second = (NodeLock(tmp_path / "owner", token) for token in ("token 1", "token 2"))
    first.acquire()
    (tmp_path / f".owner.{os.getpid()}").symlink_to("/dev/full")
    second.acquire()
    assert (first.is_held, second.is_held) == (False, True)
