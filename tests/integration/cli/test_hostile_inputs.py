"""Inputs that nobody should give: every command answers with an error in words, soon, and never with a traceback."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner, Result

from gputile.cli.app import app
from tests.unit.cli.programs import arguments
from tests.unit.tools.simulator.manifests import POD

pytestmark = pytest.mark.requirement("B4", "U11")

run = CliRunner()
SOON_S: Final = 120  # a machine that runs all tests at once is slow; what hangs takes longer
CODES: Final = (0, 1, 2, 3)
CLUSTER: Final = """
apiVersion: gputile.io/v1alpha1
kind: Cluster
nodes: [{name: 'n', mode: share, gpus: {count: 2, memory: 15GiB}}]
"""
FILES: Final[dict[str, bytes]] = {
    "empty": b"",
    "nothing": b"---\n---\n",
    "nul": b"\x00\x01\x02",
    "deep": b"[" * 5000 + b"]" * 5000,
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"b%d: &b%d [*a,*a,*a,*a,*a,*a,*a,*a]\n" % (i, i) for i in range(9)),
    "tag": b"!!python/object/apply:os.system [id]\n",
    "list": b"[1, 2, 3]",
    "text": b"hello",
    "date": b"kind: 2020-01-01\napiVersion: v1\n",
    "json": b'{"kind": "List", "apiVersion": "v1", "items": [null, 1, [], {}]}',
    "half": b'{"kind": "Pod", "apiVersion": "v1", "metadata": {',
    "duplicate": b"kind: Pod\nkind: Node\napiVersion: v1\n",
}


@contextmanager
def bounded() -> Iterator[None]:
    """Fail where a command goes on for ever."""

    def late(*_: object) -> None:
        raise TimeoutError("the command goes on and on")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SOON_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def judged(words: list[str], *, wrong: bool = False) -> Result:
    """Run a command, and check that it ends as a command may; what is given something ``wrong`` ends with an error."""
    with bounded():
        result = run.invoke(app, words)
    assert isinstance(result.exception, SystemExit | None), (words, result.exc_info)
    assert result.exit_code in CODES, (words, result.output)
    assert "Traceback" not in result.output, words
    if wrong:
        assert result.exit_code != 0, (words, result.output)
    if result.exit_code in (1, 2):
        assert result.stderr.strip(), (words, "an error without a word")
    return result


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    (directory / "directory").mkdir()
    (directory / "cluster").write_text(CLUSTER, encoding="utf-8")
    (directory / "pod").write_text(json.dumps(POD), encoding="utf-8")
    return directory


@pytest.mark.parametrize("name", [*FILES, "missing", "directory"])
def test_files_that_are_none_of_those_that_are_asked_for(name: str, place: Path) -> None:
    file, cluster = str(place / name), str(place / "cluster")
    harmless = name in ("empty", "nothing")
    for words in (
        ["simulate", "--cluster", file],
        ["simulate", "--cluster", cluster, "-f", file],
        ["simulate", "--cluster", cluster, "--fit", file],
        ["simulate", "--cluster", cluster, "--kinds", file],
        ["inspect", "--cluster", file],
        ["explain", "p", "--cluster", file],
        ["nodepool", "-f", file],
        ["inspect", "--kubeconfig", file],
    ):
        judged(words, wrong=True)
    for words in (
        ["simulate", "--cluster", cluster, "--config", file],
        ["inspect", "--cluster", cluster, "--config", file],
    ):
        judged(words, wrong=not harmless)


Answer = Callable[[BaseHTTPRequestHandler], None]


def plain(status: int, body: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(data: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(data)
        handler.close_connection = True

    return answer


HTML: Final = b"<html><body>Please log in</body></html>"


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[tuple[str, list[Answer]]]:
    """A kubeconfig of an API server, and what it answers to everything."""
    answers: list[Answer] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answers[-1](self)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Say nothing: a client that has heard enough closes its connections."""

    with Server(("127.0.0.1", 0), Handler) as server:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
            "current-context": "x",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield str(tmp_path / "kubeconfig"), answers
        server.shutdown()
        thread.join()


LIST: Final = b'{"kind":"NodeList","apiVersion":"v1","metadata":{},"items":['
LIES: Final[dict[str, tuple[Answer, int, str]]] = {
    "html": (plain(200, HTML), 2, "is this an API server?"),
    "login": (plain(302, b"", Location="http://127.0.0.1:1/login"), 1, "is this an API server?"),
    "empty": (plain(200, b""), 2, "(it is empty, not JSON): is this an API server?"),
    "half": (plain(200, LIST), 2, "(it is not JSON: Input data was truncated; it begins '{"),
    "nested": (plain(200, b"[" * 100_000), 2, "(must be a mapping, is a list; it begins"),
    "much later": (plain(429, b"{}", **{"Retry-After": "3600"}), 1, "429 TooManyRequests"),
    "a long refusal": (plain(403, b'{"message":"' + b"m" * 5_000_000 + b'"}'), 1, "mmm"),
    "ssh": (raw(b"SSH-2.0-x\r\n"), 1, "the response is not HTTP: is this an API server?"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_is_no_api_server_is_told_in_words(name: str, answering: tuple[str, list[Answer]]) -> None:
    kubeconfig, answers = answering
    answer, code, said = LIES[name]
    answers.append(answer)
    done = judged(
        ["inspect", "--config", "/dev/null", "--kubeconfig", kubeconfig, "--request-timeout", "60s"], wrong=True
    )
    *_, last = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (code, "")
    assert last.startswith("error: cannot read the cluster: ")
    assert len(done.stderr) < 5000
    assert said in last
    assert not [word for word in RAW if word in done.stderr]


RAW: Final = ("Expected `", "got `", "callback error", "Pause on")


@pytest.mark.parametrize("words", [["inspect", "--cluster"], ["explain"], ["simulate", "--unit"], ["status", "-n"]])
def test_bytes_that_are_no_text(words: list[str]) -> None:
    """A real process: only there do arguments have such bytes, and streams that take none of them."""
    command: list[str | bytes] = [*arguments("main", *words), b"\xff\xfe"]
    done = subprocess.run(command, capture_output=True, check=False, env=os.environ | {"KUBECONFIG": "/missing"})
    assert done.returncode in (1, 2)
    assert b"Traceback" not in done.stderr
    assert done.stderr.strip()
