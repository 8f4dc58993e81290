"""Provides the credentials of requests, and the TLS settings for one API server.

An exec plugin (client.authentication.k8s.io v1 and v1beta1) runs within a time limit. As with
kubectl, the plugin inherits the standard error of this process, because it may ask the user for a
login in a browser.
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
from collections.abc import Callable, Mapping
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
    """The Authorization header of a request, and its TLS settings with the client certificate."""

    authorization: str | None
    tls: ssl.SSLContext | None


class Credentials(ABC):
    """A source of credentials."""

    waits_for = ""  # what ``current`` may wait for, as a text for messages

    @abstractmethod
    async def current(self) -> Credential:
        """Return the credential for the next request.

        Raises:
            ConfigError: there is no credential.
        """

    def invalidate(self, credential: Credential) -> bool:
        """Discard ``credential`` after a 401. Return whether a new credential may be available."""
        del credential
        return False


class FixedCredentials(Credentials):
    """A token, password or client certificate that never changes, or no credential."""

    def __init__(self, authorization: str | None, tls: ssl.SSLContext | None) -> None:
        self._credential = Credential(authorization, tls)

    async def current(self) -> Credential:
        return self._credential


class TokenFileCredentials(Credentials):
    """Reads a rotated token, such as a service account token, from its file every minute."""

    def __init__(
        self,
        path: Path,
        tls: ssl.SSLContext | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._tls = tls
        self._monotonic = monotonic
        self._credential: Credential | None = None
        self._read_at = 0.0

    async def current(self) -> Credential:
        """Return the token.

        Raises:
            ConfigError: the file cannot be read, or contains no token.
        """
        now = self._monotonic()
        if self._credential is None or now - self._read_at >= _TOKEN_FILE_SECONDS:
            self._credential = Credential(_bearer_of(self._path), self._tls)
            self._read_at = now
        return self._credential

    def invalidate(self, credential: Credential) -> bool:
        """Return whether the file now contains another token."""
        self._credential = None
        return _bearer_of(self._path) != credential.authorization


def _bearer_of(path: Path) -> str:
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
        ValueError: the token has a character that is not allowed in a header, such as a newline.
    """
    if not (token.isascii() and token.isprintable()):
        raise ValueError("a token must be one line of printable ASCII characters")
    return f"Bearer {token}"


def basic(username: str, password: str) -> str:
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
    """Runs an exec plugin, and caches its credential until it expires or is refused.

    Only one run takes place at a time, for at most ``seconds``. ``cluster`` is a description of
    the cluster for plugins that request it. ``tls`` creates TLS settings from a client certificate
    and key in PEM. Certificate and key are empty if the plugin returns only a token.
    """

    def __init__(
        self,
        config: ExecConfig,
        cluster: Mapping[str, Any],
        tls: TlsFactory,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: float = PLUGIN_S,
    ) -> None:
        self._name = f"exec plugin {config.command}"
        if config.api_version not in _VERSIONS:
            raise ConfigError(
                f"{self._name} uses {config.api_version}; gputile supports "
                f"{' and '.join(_VERSIONS)}"
            )
        if config.interactive_mode == "Always":
            raise ConfigError(f"{self._name} requires a terminal, which gputile does not provide")
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
        """Return the cached credential, or run the plugin.

        Raises:
            ConfigError: the plugin is missing, fails, or returns no valid credential.
        """
        cached = self._cached()
        return cached if cached is not None else await asyncio.to_thread(self._refreshed)

    def invalidate(self, credential: Credential) -> bool:
        """Remove ``credential`` from the cache. Return True, because a new run may succeed."""
        if credential is self._credential:
            self._credential = None
        return True

    def _cached(self) -> Credential | None:
        expired = self._expires is not None and self._now() >= self._expires
        return None if expired else self._credential

    def _refreshed(self) -> Credential:
        with self._lock:
            if (cached := self._cached()) is not None:
                return cached
            self._credential = fetched = self._run_plugin()
            return fetched

    def _run_plugin(self) -> Credential:
        status = self._status(self._plugin_output())
        self._expires = status.expiration_timestamp
        if self._expires is not None and self._expires.tzinfo is None:
            self._expires = self._expires.replace(tzinfo=UTC)
        try:
            tls = self._tls(status.client_certificate_data, status.client_key_data)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            why = f": {error}" if isinstance(error, ValueError) else ""
            problem = f"returned a client certificate and key that cannot be used{why}"
            raise ConfigError(f"{self._name} {problem}") from error
        try:
            return Credential(bearer(status.token) if status.token else None, tls)
        except ValueError as error:
            raise ConfigError(f"{self._name} returned an invalid token: {error}") from error

    def _plugin_output(self) -> bytes:
        """Run the plugin within its time limit, and return its standard output."""
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
                f"{self._name} returned no credential within {self._seconds:g} s and was killed"
            ) from error
        except OSError as error:
            hint = f"; {self._config.install_hint}" if self._config.install_hint else ""
            raise ConfigError(f"cannot run the {self._name}: {error.strerror}{hint}") from error
        if done.returncode:
            raise ConfigError(f"{self._name} failed with status {done.returncode}")
        return done.stdout

    def _status(self, output: bytes) -> _CredentialStatus:
        try:
            answer = decode(output, msgspec.json.Decoder(_ExecCredential))
        except ConversionError as error:
            raise ConfigError(f"{self._name} returned no ExecCredential: {error}") from error
        if answer.api_version != self._config.api_version:
            both = f"{answer.api_version} instead of {self._config.api_version}"
            raise ConfigError(f"{self._name} answered in {both}")
        status = answer.status
        if not status.token and not (status.client_certificate_data and status.client_key_data):
            raise ConfigError(
                f"{self._name} returned neither a token nor a certificate with its key"
            )
        return status


class ClusterTls:
    """Creates TLS settings for a cluster.

    ``authority`` is the cluster's CA in PEM. If ``authority`` is empty, the system's CAs apply.
    """

    def __init__(self, server: str, authority: str, *, insecure: bool) -> None:
        self.authority = authority
        self._encrypted = server.startswith("https:")
        self._insecure = insecure

    def with_client(self, certificate: str = "", key: str = "") -> ssl.SSLContext | None:
        """Return the TLS settings, or None for plain HTTP.

        ``certificate`` and ``key`` are a client certificate in PEM, or empty for no certificate.

        Raises:
            ssl.SSLError: the certificate, the key or the CA is not PEM.
            ValueError: the key is protected by a passphrase.
        """
        if not self._encrypted:
            return None
        context = ssl.create_default_context(cadata=self.authority or None)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            # ssl can read a client certificate only from files.
            with tempfile.TemporaryDirectory() as directory:
                files = Path(directory, "tls.crt"), Path(directory, "tls.key")
                for file, content in zip(files, (certificate, key), strict=True):
                    file.touch(mode=0o600)
                    file.write_text(content)
                context.load_cert_chain(*files, _no_pass_phrase)
        return context


def _no_pass_phrase() -> NoReturn:
    """Refuse an encrypted key, because OpenSSL would block on a prompt for its passphrase."""
    raise ValueError(
        "the key is protected by a passphrase: use one without (openssl pkey -in KEY -out NEW)"
    )
