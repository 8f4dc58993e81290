"""The proxy of the soak does to connections what each of its moods says."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.soak.system.proxy import Mood, Proxies

WITHIN_S = 60.0


@pytest.fixture
def shouting() -> Iterator[int]:
    """The port of a server that answers in capitals."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(100):
                    connection.sendall(data.upper())

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
    assert asked(connection, b"first") == b"FIRST"
    return connection


def asked(connection: socket.socket, text: bytes) -> bytes:
    try:
        connection.sendall(text)
        return connection.recv(100)
    except ConnectionError:
        return b""


def test_each_mood(shouting: int) -> None:
    with Proxies(shouting) as proxies:
        port = proxies.start("one").port
        with connected(port) as connection:
            proxies.set("one", Mood.LOSE)
            time.sleep(0.2)
            assert asked(connection, b"lost") == b""
        with connected(port) as connection:  # those that come later are served
            proxies.set("one", Mood.CUT)
            time.sleep(0.2)
            assert asked(connection, b"cut") == b""
        with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as connection:
            assert asked(connection, b"closed at once") == b""
        proxies.set("one", Mood.DELAY, 0.5)
        since = time.monotonic()
        with connected(port):
            assert time.monotonic() - since >= 0.5
        proxies.set("one", Mood.PASS)
        with connected(port) as connection:
            assert asked(connection, b"through") == b"THROUGH"
