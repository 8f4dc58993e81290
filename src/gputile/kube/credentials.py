"""Provides what a request authenticates with, and what to do when that is refused."""

import asyncio
import base64
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.units import MIB
from gputile.kube.errors import ConfigError, PluginTimeout
from gputile.support.bounded_files import read_bounded

_SILENT_S = 0.5  # of a pipe in its place; several requests read it
TOKEN_FILE_SECONDS = 60.0  # the kubelet rotates a projected token well before it expires


class Credential(NamedTuple):
    """What one request carries: the Authorization header, and the TLS settings with the client certificate."""

    authorization: str | None
    tls: ssl.SSLContext | None


class Credentials(Protocol):
    """A source of credentials."""

    @property
    def waits_for(self) -> str:
        """What ``current`` may wait for, in words; "" where it waits for nothing."""

    async def current(self) -> Credential:
        """Return what to send now.

        Raises:
            ConfigError: there is none.
        """

    def refused(self, credential: Credential) -> bool:
        """Take note that ``credential`` got a 401; return whether another request could carry another one."""

    def take_over(self, before: "Credentials") -> None:
        """Use the credential that ``before`` got and that costs something to get, where both are of one source."""


class FixedCredentials:
    """A token, a password, a client certificate, or nothing: the same for ever."""

    waits_for = ""

    def __init__(self, authorization: str | None, tls: ssl.SSLContext | None) -> None:
        self._credential = Credential(authorization, tls)

    async def current(self) -> Credential:
        """Return the one credential."""
        return self._credential

    def refused(self, credential: Credential) -> bool:
        """Return False: there is no other."""
        del credential
        return False

    def take_over(self, before: Credentials) -> None:
        """Do nothing: what is written costs nothing to get."""


class TokenFileCredentials:
    """A token in a file that somebody rotates, as the kubelet does for service accounts."""

    waits_for = ""

    def __init__(self, path: Path, tls: ssl.SSLContext | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._tls = tls
        self._monotonic = monotonic
        self._credential: Credential | None = None
        self._read_at = 0.0

    async def current(self) -> Credential:
        """Return the token, read again once a minute.

        Raises:
            ConfigError: the file cannot be read, or holds no token.
        """
        now = self._monotonic()
        if self._credential is None or now - self._read_at >= TOKEN_FILE_SECONDS:
            self._credential = Credential(bearer(self._read()), self._tls)
            self._read_at = now
        return self._credential

    def refused(self, credential: Credential) -> bool:
        """Read the file again; return whether it holds another token than the one refused."""
        self._credential = None
        return bearer(self._read()) != credential.authorization

    def take_over(self, before: Credentials) -> None:
        """Do nothing: a file is read again."""

    def _read(self) -> str:
        try:
            return read_token(self._path)
        except OSError as error:
            raise ConfigError(f"cannot read the token file {self._path}: {error.strerror}") from error


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        OSError: the file cannot be read.
        ConfigError: it holds none.
    """
    token = read_bounded(path, MIB, _SILENT_S).strip()
    if not token:
        raise ConfigError(f"the token file {path} is empty")
    try:
        bearer(text := token.decode("ascii", errors="replace"))
    except ValueError as error:
        raise ConfigError(f"the token file {path}: {error}") from error
    return text


def bearer(token: str) -> str:
    """Return the Authorization header of a bearer token.

    Raises:
        ValueError: it has a character that no header may have, such as the end of a line.
    """
    if not (token.isascii() and token.isprintable()):
        raise ValueError("a token must be one line of ASCII characters, and this one has others")
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
    """Return the Authorization header of a user name and password."""
    return "Basic " + base64.b64encode(f"{username}:{password}".encode()).decode()


MOST_BYTES: Final = 1 << 20  # a token has some KiB, a certificate with its key too
_KEPT_BYTES: Final = 4096  # of what it says on stderr, the end
_LATE_S: Final = 1.0  # for what a process has written before it ended, where a child keeps its output open
_ENDED_S: Final = 2.0  # until the kernel has ended a process
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class PluginAnswer:
    """What a plugin wrote, and its exit status; ``said`` is the end of its stderr.

    ``status`` is None where it was ended before it did so itself: it took too long, or wrote more than a MiB.
    """

    written: bytes
    said: str
    status: int | None
    too_long: bool = False


class _PluginOutput(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self.written = bytearray()
        self.said = b""
        self.done = asyncio.Event()  # it has ended, or has written too much
        self.closed = asyncio.Event()
        self.exited = asyncio.Event()

    @property
    def too_long(self) -> bool:
        return len(self.written) > MOST_BYTES

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Keep what an answer may have, and the end of what is said."""
        if fd == 1:
            self.written += data[: MOST_BYTES + 1 - len(self.written)]
            if self.too_long:
                self.done.set()
        else:
            self.said = (self.said + data)[-_KEPT_BYTES:]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Take note that there will be no more of it."""
        del exc
        if fd == 1:
            self.closed.set()

    def process_exited(self) -> None:
        """Take note that it has ended."""
        self.exited.set()
        self.done.set()


async def answer_of(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> PluginAnswer:
    """Run a plugin for at most so many seconds, and return what it answers.

    It has a session of its own, so that it is ended with its children where it takes too long or is no longer waited
    for. Where it ends by itself, a child that it leaves goes on: some plugins leave a process that keeps logins.

    Raises:
        OSError: it cannot be started.
        ValueError: its arguments or its environment are none.
    """
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    with _ended_by_signals() as begin:
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            _PluginOutput, *command, stdin=null, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
        )
        begin(transport.get_pid())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await output.done.wait()
            status = transport.get_returncode()
            if status is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LATE_S):
                        await output.closed.wait()
        finally:
            await _end(transport, output)
    return PluginAnswer(bytes(output.written), _text(output.said), status, output.too_long)


async def _end(transport: asyncio.SubprocessTransport, output: _PluginOutput) -> None:
    """End the process and its children where it goes on, and take its pipes away."""
    if transport.get_returncode() is None:
        _kill(transport.get_pid())
    transport.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDED_S):
            await output.exited.wait()


def _kill(session: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


def _text(said: bytes) -> str:
    return " ".join(said.decode(errors="replace").split())[-500:]


@contextmanager
def _ended_by_signals() -> Iterator[Callable[[int], None]]:
    """Yield what is to be told the session that has begun: a signal that ends this process then ends that one, too.

    A program that handles the signal itself, as a service does, ends what it waits for in its own way.
    """
    session: int | None = None
    came: int | None = None

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = number
        if session is not None:  # else it is just beginning
            leave(session, number)

    def begin(begun: int) -> None:
        nonlocal session
        session = begun
        if came is not None:
            leave(begun, came)

    def leave(begun: int, number: int) -> None:
        _kill(begun)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    here = threading.current_thread() is threading.main_thread()
    handled = [each for each in _SIGNALS if here and signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, end)
    try:
        yield begin
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        if came is not None:  # it could not be started
            os.kill(os.getpid(), came)


VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PLUGIN_S: Final = 60.0

TlsFactory = Callable[[str, str], ssl.SSLContext | None]


class ExecVariable(msgspec.Struct):
    """An environment variable that the kubeconfig sets for the plugin."""

    name: str
    value: str


class ExecConfig(msgspec.Struct, rename="camel", kw_only=True):
    """The ``exec`` section of a kubeconfig's user."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[ExecVariable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _CredentialStatus(msgspec.Struct, rename="camel", kw_only=True):
    expiration_timestamp: datetime | None = None
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""


class _ExecCredential(msgspec.Struct, rename="camel", kw_only=True):
    api_version: str
    status: _CredentialStatus


_CREDENTIAL: Final = msgspec.json.Decoder(_ExecCredential)


class ExecCredentials:
    """Runs the plugin when there is no credential, when it has expired, and when it was refused; one run at a time.

    ``cluster`` is what the plugin is told of the cluster if it asks for it; ``tls`` makes TLS settings from a client
    certificate and key in PEM, both empty where the plugin gives a token only. The plugin has ``seconds`` to answer.
    """

    def __init__(
        self,
        config: ExecConfig,
        cluster: Mapping[str, Any],
        tls: TlsFactory,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: float = PLUGIN_S,
    ) -> None:
        if config.api_version not in VERSIONS:
            known = " and ".join(VERSIONS)
            raise ConfigError(f"exec plugin {config.command} speaks {config.api_version}; gputile speaks {known}")
        if config.interactive_mode == "Always":
            raise ConfigError(f"exec plugin {config.command} needs a terminal, which gputile does not give it")
        self._config = config
        self._cluster = cluster
        self._tls = tls
        self._now = now
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._credential: Credential | None = None
        self._expires: datetime | None = None

    @property
    def waits_for(self) -> str:
        """The plugin, by its command."""
        return f"the credential plugin {self._config.command}"

    @property
    def source(self) -> tuple[ExecConfig, Mapping[str, Any]]:
        """The plugin, and the cluster that it gives credentials for."""
        return self._config, self._cluster

    @property
    def known(self) -> tuple[Credential | None, datetime | None]:
        """The credential that the plugin gave last, and when it expires."""
        return self._credential, self._expires

    async def current(self) -> Credential:
        """Return the credential that the plugin gave, or gives now.

        Raises:
            ConfigError: the plugin is missing, fails, or answers with something else than a credential.
        """
        async with self._lock:
            expired = self._expires is not None and self._now() >= self._expires
            if self._credential is None or expired:
                self._credential = await self._fetch()
            return self._credential

    def refused(self, credential: Credential) -> bool:
        """Forget ``credential``; return True: the plugin may give another."""
        if credential is self._credential:
            self._credential = None
        return True

    def take_over(self, before: Credentials) -> None:
        """Use what the same plugin has given for the same cluster, until that expires."""
        if isinstance(before, ExecCredentials) and before.source == self.source:
            self._credential, self._expires = before.known

    async def _fetch(self) -> Credential:
        given = self._parse(await self._run())
        if given.expiration_timestamp is None or given.expiration_timestamp.tzinfo:
            self._expires = given.expiration_timestamp
        else:
            self._expires = given.expiration_timestamp.replace(tzinfo=UTC)
        try:
            tls = self._tls(given.client_certificate_data, given.client_key_data)
        except (OSError, ValueError) as error:  # of ssl, whose errors are OSErrors
            why = f": {error}" if isinstance(error, ValueError) else ""
            said = f"answered with a client certificate and key that cannot be used{why}"
            raise ConfigError(f"exec plugin {self._config.command} {said}") from error
        try:
            return Credential(bearer(given.token) if given.token else None, tls)
        except ValueError as error:
            raise ConfigError(f"exec plugin {self._config.command} answered with a token of no use: {error}") from error

    def _environment(self) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": False}
        if self._config.provide_cluster_info:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}
        extra = {variable.name: variable.value for variable in self._config.env or ()}
        return {**os.environ, **extra, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}

    async def _run(self) -> bytes:
        named = f"exec plugin {self._config.command}"
        command = [self._config.command, *(self._config.args or ())]
        try:
            answer = await answer_of(command, self._environment(), self._seconds)
        except OSError as error:
            hint = f"; {self._config.install_hint}" if self._config.install_hint else ""
            raise ConfigError(f"cannot run the {named}: {error.strerror}{hint}") from error
        except ValueError as error:  # of a name with "=", or a text with a NUL
            raise ConfigError(f"cannot run the {named}: its args or env cannot be given to a process") from error
        said = f": {answer.said}" if answer.said else ""
        if answer.too_long:
            raise ConfigError(
                f"{named} wrote more than {MOST_BYTES >> 20} MiB, and was ended: that is no ExecCredential"
            )
        if answer.status is None:
            raise PluginTimeout(f"{named} gave no credential within {self._seconds:g} s, and was ended{said}")
        if answer.status < 0:
            raise ConfigError(f"{named} was ended by signal {-answer.status}{said}")
        if answer.status:
            raise ConfigError(f"{named} failed with status {answer.status}{said}")
        return answer.written

    def _parse(self, output: bytes) -> _CredentialStatus:
        try:
            answer = decode(output, _CREDENTIAL)
        except ConversionError as error:
            raise ConfigError(f"exec plugin {self._config.command} answered with no ExecCredential: {error}") from error
        if answer.api_version != self._config.api_version:
            both = f"{answer.api_version} instead of {self._config.api_version}"
            raise ConfigError(f"exec plugin {self._config.command} answered in {both}")
        status = answer.status
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise ConfigError(f"exec plugin {self._config.command} gave neither a token nor a certificate with its key")
        return status
