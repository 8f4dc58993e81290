"""Provides what a request authenticates with, and the TLS settings towards one API server.

An exec plugin (client.authentication.k8s.io v1 and v1beta1) runs within a time limit. What it prints on standard error
is seen at once, as with kubectl: it may ask for a login in a browser. Where a certificate or key cannot be used, a
ValueError names the field of the kubeconfig.
"""

import asyncio
import base64
import os
import ssl
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.quantity import MIB
from gputile.kube.errors import ConfigError, PluginTimeout
from gputile.support.files import read_bounded

_TOKEN_FILE_SECONDS = 60.0  # the kubelet rotates a projected token well before it expires
_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PLUGIN_S: Final = 60.0

TlsFactory = Callable[[str, str], ssl.SSLContext | None]


class Credential(NamedTuple):
    """What one request carries: the Authorization header, and the TLS settings with the client certificate."""

    authorization: str | None
    tls: ssl.SSLContext | None


class Credentials(ABC):
    """A source of credentials."""

    waits_for = ""  # what ``current`` may wait for, in words

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
        self.waits_for = f"the credential plugin {config.command}"
        self._config = config
        self._cluster = cluster
        self._credential: Credential | None = None
        self._expires: datetime | None = None
        self._tls = tls
        self._now = now
        self._seconds = seconds
        self._lock = threading.Lock()

    async def current(self) -> Credential:
        """Return the credential that the plugin gave, or gives now.

        Raises:
            ConfigError: the plugin is missing, fails, or answers with something else than a credential.
        """
        known = self._known()
        return known if known is not None else await asyncio.to_thread(self._renewed)

    def refused(self, credential: Credential) -> bool:
        """Forget ``credential``; return True: the plugin may give another."""
        if credential is self._credential:
            self._credential = None
        return True

    def _known(self) -> Credential | None:
        expired = self._expires is not None and self._now() >= self._expires
        return None if expired else self._credential

    def _renewed(self) -> Credential:
        with self._lock:
            if (known := self._known()) is not None:
                return known
            self._credential = fetched = self._fetch()
            return fetched

    def _fetch(self) -> Credential:
        given = self._status(self._output())
        self._expires = given.expiration_timestamp
        if self._expires is not None and self._expires.tzinfo is None:
            self._expires = self._expires.replace(tzinfo=UTC)
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

    def _output(self) -> bytes:
        """Run the plugin for at most its time, and return what it writes to standard output."""
        command = [self._config.command, *(self._config.args or ())]
        spec: dict[str, Any] = {"interactive": False}
        if self._config.provide_cluster_info:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._config.api_version, "kind": "ExecCredential", "spec": spec}
        environment = {
            **os.environ,
            **{variable.name: variable.value for variable in self._config.env or ()},
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
        }
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=environment,
                timeout=self._seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PluginTimeout(
                f"{self._named} gave no credential within {self._seconds:g} s, and was ended"
            ) from error
        except OSError as error:
            hint = f"; {self._config.install_hint}" if self._config.install_hint else ""
            raise ConfigError(f"cannot run the {self._named}: {error.strerror}{hint}") from error
        if done.returncode:
            raise ConfigError(f"{self._named} failed with status {done.returncode}")
        return done.stdout

    def _status(self, output: bytes) -> _CredentialStatus:
        try:
            answer = decode(output, msgspec.json.Decoder(_ExecCredential))
        except ConversionError as error:
            raise ConfigError(f"{self._named} answered with no ExecCredential: {error}") from error
        if answer.api_version != self._config.api_version:
            both = f"{answer.api_version} instead of {self._config.api_version}"
            raise ConfigError(f"{self._named} answered in {both}")
        status = answer.status
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise ConfigError(f"{self._named} gave neither a token nor a certificate with its key")
        return status


_MOST_BYTES: Final = 4 * MIB  # a bundle of all authorities of the web has 0.2 MiB


class ClusterTls:
    """Makes the TLS settings of one cluster; None throughout where the API server is reached by plain HTTP.

    ``authority`` is a file, ``authority_data`` its content in base64, which counts where both are there.
    """

    def __init__(self, server: str, authority: str | None, authority_data: str | None, *, insecure: bool) -> None:
        self._encrypted = server.startswith("https:")
        self._insecure = insecure
        self.authority_data = authority_data or ""
        if not self.authority_data and authority:
            with _named("certificate-authority", authority):
                self.authority_data = base64.b64encode(read_bounded(authority, _MOST_BYTES)).decode()

    def with_files(self, certificate: str, key: str | None) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key from files; both may be in one."""
        with _named("client-certificate, client-key", certificate, key or ""):
            pem, key_pem = (_ascii(read_bounded(file, _MOST_BYTES)) for file in (certificate, key or certificate))
            return self.with_pem(pem, key_pem)

    def with_data(self, certificate: str | None, key: str | None) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key, which are in base64."""
        certificate_pem = _decoded(certificate, "client-certificate-data")
        with _named("client-certificate-data, client-key-data"):
            return self.with_pem(certificate_pem, _decoded(key, "client-key-data"))

    def with_pem(self, certificate: str, key: str) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key in PEM, or without where they are empty.

        Raises:
            ssl.SSLError: they are no certificate and key that belong together.
        """
        context = self.without_certificate()
        if context and certificate:
            # ssl reads a certificate from files only
            with tempfile.TemporaryDirectory() as directory:
                files = Path(directory, "tls.crt"), Path(directory, "tls.key")
                for file, content in zip(files, (certificate, key), strict=True):
                    file.touch(mode=0o600)
                    file.write_text(content)
                context.load_cert_chain(*files, _no_pass_phrase)
        return context

    def without_certificate(self) -> ssl.SSLContext | None:
        """Return the settings of a client that shows no certificate."""
        if not self._encrypted:
            return None
        with _named("certificate-authority"):
            authority = _decoded(self.authority_data, "certificate-authority-data")
            context = ssl.create_default_context(cadata=authority or None)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _no_pass_phrase() -> NoReturn:
    """Refuse a key that is encrypted; OpenSSL would ask the terminal for the pass phrase, and wait for ever."""
    raise ValueError("the key is protected by a pass phrase: give one without (openssl pkey -in KEY -out NEW)")


@contextmanager
def _named(fields: str, *files: str) -> Iterator[None]:
    """Raise a ValueError that names the fields of the kubeconfig whose certificate, key or file cannot be used."""
    named = f"{fields} ({', '.join(filter(None, files))})" if any(files) else fields
    try:
        yield
    except ssl.SSLError as error:
        why = f": {error.reason}" if error.reason else ""
        raise ValueError(f"{named}: no PEM that can be used{why}") from error
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from error
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror or error}") from error


def _decoded(data: str | None, field: str) -> str:
    try:
        return _ascii(base64.b64decode("".join((data or "").split()), validate=True))
    except ValueError as error:
        raise ValueError(f"{field}: must be base64") from error


def _ascii(pem: bytes) -> str:
    # ssl takes ASCII; what is not is a comment beside the certificates, or no certificate
    return pem.decode("ascii", errors="replace").replace("\ufffd", "?")
