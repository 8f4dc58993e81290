"""Gets credentials from a kubeconfig's exec plugin (client.authentication.k8s.io v1 and v1beta1)."""

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.kube.access.credentials import Credential, Credentials, bearer
from gputile.kube.access.plugin_process import MOST_BYTES, answer_of
from gputile.kube.errors import ConfigError, PluginTimeout

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
