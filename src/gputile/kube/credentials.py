"""Provides what a request authenticates with, and what to do when that is refused.

An exec plugin (client.authentication.k8s.io v1 and v1beta1) runs within a time limit, and is ended with all that it has
started.
"""

import asyncio
import base64
import os
import signal
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, cast

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.quantity import MIB
from gputile.kube.errors import ConfigError, PluginTimeout
from gputile.support.files import read_bounded

_TOKEN_FILE_SECONDS = 60.0  # the kubelet rotates a projected token well before it expires
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PLUGIN_S: Final = 60.0
_MOST_BYTES: Final = MIB  # of a plugin's answer: a token has some KiB, a certificate with its key too
_KEPT_BYTES: Final = 4096  # of its stderr, the end
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDED_S: Final = 2.0  # until the kernel has ended a process

TlsFactory = Callable[[str, str], ssl.SSLContext | None]


class Credential(NamedTuple):
    """What one request carries: the Authorization header, and the TLS settings with the client certificate."""

    authorization: str | None
    tls: ssl.SSLContext | None


class Credentials(ABC):
    """A source of credentials."""

    @property
    def waits_for(self) -> str:
        """What ``current`` may wait for, in words; "" where it waits for nothing."""
        return ""

    @abstractmethod
    async def current(self) -> Credential:
        """Return what to send now.

        Raises:
            ConfigError: there is none.
        """

    def refused(self, credential: Credential) -> bool:
        """Record that ``credential`` got a 401; return whether another request could carry another one."""
        del credential
        return False

    def take_over(self, before: "Credentials") -> None:
        """Use the credential that ``before`` got, where it costs something to get and both are of one source."""
        del before


class FixedCredentials(Credentials):
    """A token, a password, a client certificate, or nothing: the same for ever."""

    def __init__(self, authorization: str | None, tls: ssl.SSLContext | None) -> None:
        self._credential = Credential(authorization, tls)

    async def current(self) -> Credential:
        """Return the one credential."""
        return self._credential


class TokenFileCredentials(Credentials):
    """A token in a file that is rotated, as the kubelet does for service accounts. It is read again once a minute."""

    def __init__(self, path: Path, tls: ssl.SSLContext | None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._tls = tls
        self._monotonic = monotonic
        self._credential: Credential | None = None
        self._read_at = 0.0

    async def current(self) -> Credential:
        """Return the token.

        Raises:
            ConfigError: the file cannot be read, or holds no token.
        """
        now = self._monotonic()
        if self._credential is None or now - self._read_at >= _TOKEN_FILE_SECONDS:
            self._credential = Credential(_bearer_of(self._path), self._tls)
            self._read_at = now
        return self._credential

    def refused(self, credential: Credential) -> bool:
        """Read the file again; return whether it holds another token than the one refused."""
        self._credential = None
        return _bearer_of(self._path) != credential.authorization


def _bearer_of(path: Path) -> str:
    """Return the Authorization header for the token in a file."""
    try:
        token = read_bounded(path, MIB).strip()
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"the token file {path} is empty")
    try:
        return bearer(token.decode("ascii", errors="replace"))
    except ValueError as error:
        raise ConfigError(f"the token file {path}: {error}") from error


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


class ExecCredentials(Credentials):
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
        self._named = f"exec plugin {config.command}"
        if config.api_version not in _VERSIONS:
            raise ConfigError(f"{self._named} speaks {config.api_version}; gputile speaks {' and '.join(_VERSIONS)}")
        if config.interactive_mode == "Always":
            raise ConfigError(f"{self._named} needs a terminal, which gputile does not give it")
        self.config = config
        self.cluster = cluster
        self.credential: Credential | None = None
        self.expires: datetime | None = None
        self._tls = tls
        self._now = now
        self._seconds = seconds
        self._lock = asyncio.Lock()

    @property
    def waits_for(self) -> str:
        """The plugin, by its command."""
        return f"the credential plugin {self.config.command}"

    async def current(self) -> Credential:
        """Return the credential that the plugin gave, or gives now.

        Raises:
            ConfigError: the plugin is missing, fails, or answers with something else than a credential.
        """
        async with self._lock:
            expired = self.expires is not None and self._now() >= self.expires
            if self.credential is None or expired:
                self.credential = await self._fetch()
            return self.credential

    def refused(self, credential: Credential) -> bool:
        """Forget ``credential``; return True: the plugin may give another."""
        if credential is self.credential:
            self.credential = None
        return True

    def take_over(self, before: Credentials) -> None:
        """Use what the same plugin has given for the same cluster, until that expires."""
        if isinstance(before, ExecCredentials) and (before.config, before.cluster) == (self.config, self.cluster):
            self.credential, self.expires = before.credential, before.expires

    async def _fetch(self) -> Credential:
        given = self._status(await self._output())
        self.expires = given.expiration_timestamp
        if self.expires is not None and self.expires.tzinfo is None:
            self.expires = self.expires.replace(tzinfo=UTC)
        try:
            tls = self._tls(given.client_certificate_data, given.client_key_data)
        except (OSError, ValueError) as error:  # of ssl, whose errors are OSErrors
            why = f": {error}" if isinstance(error, ValueError) else ""
            said = f"answered with a client certificate and key that cannot be used{why}"
            raise ConfigError(f"{self._named} {said}") from error
        try:
            return Credential(bearer(given.token) if given.token else None, tls)
        except ValueError as error:
            raise ConfigError(f"{self._named} answered with a token of no use: {error}") from error

    async def _output(self) -> bytes:
        """Run the plugin for at most its time, and return what it writes.

        It has a session of its own, so that it is ended with its children where it takes too long or is no longer
        waited for. Where it ends by itself, a child that it leaves goes on: some plugins leave a process that keeps
        logins.
        """
        written, stderr = bytearray(), bytearray()
        with _ended_by_signals() as begin:
            process = await self._start()
            begin(process.pid)
            told = asyncio.create_task(_keep_end(cast("asyncio.StreamReader", process.stderr), stderr))
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._seconds):
                        await _keep_beginning(cast("asyncio.StreamReader", process.stdout), written)
                        if len(written) <= _MOST_BYTES:
                            await told
                            await process.wait()
                status = process.returncode
            finally:
                told.cancel()
                await asyncio.wait([told])
                await _end(process)
        text = " ".join(stderr.decode(errors="replace").split())[-500:]
        said = f": {text}" if text else ""
        if len(written) > _MOST_BYTES:
            mib = _MOST_BYTES // MIB
            raise ConfigError(f"{self._named} wrote more than {mib} MiB, and was ended: that is no ExecCredential")
        if status is None:
            raise PluginTimeout(f"{self._named} gave no credential within {self._seconds:g} s, and was ended{said}")
        if status < 0:
            raise ConfigError(f"{self._named} was ended by signal {-status}{said}")
        if status:
            raise ConfigError(f"{self._named} failed with status {status}{said}")
        return bytes(written)

    async def _start(self) -> asyncio.subprocess.Process:
        command = [self.config.command, *(self.config.args or ())]
        spec: dict[str, Any] = {"interactive": False}
        if self.config.provide_cluster_info:
            spec["cluster"] = self.cluster
        info = {"apiVersion": self.config.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {
            **os.environ,
            **{variable.name: variable.value for variable in self.config.env or ()},
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
        }
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command, stdin=null, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await _end(await starting)  # asyncio itself would leave its children
            raise
        except OSError as error:
            hint = f"; {self.config.install_hint}" if self.config.install_hint else ""
            raise ConfigError(f"cannot run the {self._named}: {error.strerror}{hint}") from error
        except ValueError as error:  # of a name with "=", or a text with a NUL
            raise ConfigError(f"cannot run the {self._named}: its args or env cannot be given to a process") from error

    def _status(self, output: bytes) -> _CredentialStatus:
        try:
            answer = decode(output, msgspec.json.Decoder(_ExecCredential))
        except ConversionError as error:
            raise ConfigError(f"{self._named} answered with no ExecCredential: {error}") from error
        if answer.api_version != self.config.api_version:
            both = f"{answer.api_version} instead of {self.config.api_version}"
            raise ConfigError(f"{self._named} answered in {both}")
        status = answer.status
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise ConfigError(f"{self._named} gave neither a token nor a certificate with its key")
        return status


async def _keep_beginning(reader: asyncio.StreamReader, written: bytearray) -> None:
    """Read to the end, or until there is too much of it."""
    while len(written) <= _MOST_BYTES and (part := await reader.read(MIB)):
        written += part


async def _keep_end(reader: asyncio.StreamReader, said: bytearray) -> None:
    """Read to the end, and keep the last part."""
    while part := await reader.read(_KEPT_BYTES):
        said += part
        del said[:-_KEPT_BYTES]


@contextmanager
def _ended_by_signals() -> Iterator[Callable[[int], None]]:
    """Yield what is told the plugin's session: a signal that ends this process then ends that one, too.

    The session is its own, so that ^C on the terminal does not reach it. A signal that comes while the plugin is being
    started waits for that. One that this process handles itself, as a service does, is left alone.
    """
    sessions: list[int] = []
    came: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        if sessions:
            leave()

    def begin(session: int) -> None:
        sessions.append(session)
        if came:
            leave()

    def leave() -> None:
        for session in sessions:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(session, signal.SIGKILL)
        signal.signal(came[0], signal.SIG_DFL)
        signal.raise_signal(came[0])

    here = threading.current_thread() is threading.main_thread()
    handled = [each for each in _SIGNALS if here and signal.getsignal(each) is signal.SIG_DFL]
    for each in handled:
        signal.signal(each, end)
    try:
        yield begin
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        if came:  # the plugin could not be started
            leave()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and its children if it still runs, and read its pipes to their end, which closes them."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDED_S):
            await process.communicate()
