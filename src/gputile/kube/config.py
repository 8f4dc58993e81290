"""Reads the API server's address and the credentials from a kubeconfig or a service account."""

import base64
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec

from gputile.api.conversion import ConversionError, convert
from gputile.api.quantity import MIB
from gputile.kube.credentials import (
    PLUGIN_S,
    ClusterTls,
    Credentials,
    ExecConfig,
    ExecCredentials,
    FixedCredentials,
    TokenFileCredentials,
    basic,
    bearer,
)
from gputile.kube.errors import ConfigError
from gputile.kube.proxy import Proxy, environment_proxy, is_http_url
from gputile.support.files import read_bounded
from gputile.support.yaml_loader import load_document

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
T = TypeVar("T")
_DEFAULT_NAMESPACE = "default"
_MOST_BYTES: Final = 16 * MIB  # a cluster with its user takes about 4 KiB
_SECTIONS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
# the characters of a header's name that need no percent-encoding
_HEADER_NAME: Final = "!#$&'*+^`|"


class _NamedEntry(msgspec.Struct):
    """A named cluster, context or user. Its content is validated only if the entry is used."""

    name: str
    cluster: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    user: dict[str, Any] | None = None


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    current_context: str | None = None
    clusters: list[_NamedEntry] | None = None
    contexts: list[_NamedEntry] | None = None
    users: list[_NamedEntry] | None = None


class _KubeconfigCluster(msgspec.Struct, rename="kebab", kw_only=True):
    """An API server's address and CA (client-go's clientcmd/api/v1 Cluster)."""

    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None  # PEM in base64
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, Any]] | None = None


class _KubeconfigUser(msgspec.Struct, rename="kebab", kw_only=True):
    """A user's credentials (client-go's clientcmd/api/v1 AuthInfo).

    The fields ``as...`` request impersonation. The fields ``..._data`` contain PEM in base64.
    """

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    as_: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str] | None] | None = None
    exec: dict[str, Any] | None = None
    auth_provider: dict[str, Any] | None = None


class _KubeconfigContext(msgspec.Struct, kw_only=True):
    cluster: str
    user: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class Access:
    """The address of an API server, and the credentials for requests to it."""

    server: str  # the URL without a trailing slash
    credentials: Credentials
    namespace: str = _DEFAULT_NAMESPACE
    tls_server_name: str | None = None
    proxy: Proxy | None = None
    impersonation: tuple[tuple[str, str], ...] = ()  # headers of every request


def load_access(
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: str | Path = SERVICE_ACCOUNT,
    plugin_s: float = PLUGIN_S,
) -> Access:
    """Return the access to the cluster.

    The first available source is used: ``kubeconfig``, $KUBECONFIG, ~/.kube/config, and the pod's
    service account. $KUBECONFIG may list several files. If several files define a value, the first
    definition applies. ``context`` overrides the current context of the kubeconfig. An exec plugin
    must return a credential within ``plugin_s`` seconds.

    Raises:
        ConfigError: there is no usable configuration. The message gives the reason.
    """
    files = _files(kubeconfig, environ)
    named = (
        "kubeconfig " + os.pathsep.join(map(str, files)) if files else "the pod's service account"
    )
    try:
        if files:
            return _access(_merged(files), context, environ, plugin_s)
        if context is None and "KUBERNETES_SERVICE_HOST" in environ:
            return _in_cluster(Path(service_account), environ)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ConfigError(f"cannot use {named}: {where}{error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"cannot use {named}: {error}") from error
    except KeyError as error:
        raise ConfigError(f"cannot use {named}: {error} is missing") from error
    raise ConfigError(
        "no kubeconfig: give a path, set $KUBECONFIG, write ~/.kube/config, or run in a pod"
    )


def _files(kubeconfig: str | Path | None, environ: Mapping[str, str]) -> list[Path]:
    if kubeconfig:
        # Path.expanduser would raise an error if the user does not exist.
        return [Path(os.path.expanduser(kubeconfig))]  # noqa: PTH111
    if environ.get("KUBECONFIG"):
        named = [Path(each) for each in environ["KUBECONFIG"].split(os.pathsep) if each]
        return [each for each in named if each.is_file()] or named
    home = Path(os.path.expanduser(environ.get("HOME", "~")), ".kube", "config")  # noqa: PTH111
    return [home] if home.is_file() else []


def _merged(files: list[Path]) -> dict[str, Any]:
    """Merge the files into one kubeconfig, in which each section maps names to entries."""
    merged: dict[str, Any] = {"current-context": None, **{section: {} for section in _SECTIONS}}
    for file in files:
        document = load_document(read_bounded(file, _MOST_BYTES))
        if document is None and len(files) > 1:
            continue  # kubectl writes to the first file, so users often begin with an empty one
        found = _converted(document, _Kubeconfig, str(file))
        merged["current-context"] = merged["current-context"] or found.current_context
        for section, kind in _SECTIONS.items():
            for each in getattr(found, section) or ():
                merged[section].setdefault(
                    each.name, _absolute(getattr(each, kind) or {}, file.absolute().parent)
                )
    return merged


def _absolute(entry: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return the entry with absolute paths. ``directory`` is the kubeconfig's directory."""
    absolute = {
        key: str(directory / value) if key in _PATHS and value and isinstance(value, str) else value
        for key, value in entry.items()
    }
    plugin = entry.get("exec")
    command = plugin.get("command") if isinstance(plugin, dict) else None
    if isinstance(command, str) and os.sep in command:
        absolute["exec"] = {**entry["exec"], "command": str(directory / command)}
    return absolute


def _access(
    document: dict[str, Any], name: str | None, environ: Mapping[str, str], plugin_s: float
) -> Access:
    chosen = name or document["current-context"]
    if not chosen:
        raise ValueError("it has no current context, and none is named")
    context = _entry(document, "contexts", chosen, _KubeconfigContext)
    cluster = _entry(document, "clusters", context.cluster, _KubeconfigCluster)
    user = (
        _entry(document, "users", context.user, _KubeconfigUser)
        if context.user
        else _KubeconfigUser()
    )
    server = cluster.server.rstrip("/")
    if not is_http_url(server):
        raise ValueError(
            f"server of cluster {context.cluster!r} is {server!r}, not a URL such as "
            f"https://HOST:PORT"
        )
    return Access(
        server=server,
        credentials=_credentials(cluster, user, plugin_s),
        namespace=context.namespace or _DEFAULT_NAMESPACE,
        tls_server_name=cluster.tls_server_name or None,
        proxy=_proxy(cluster, context.cluster, environ),
        impersonation=tuple(_impersonation(user)),
    )


def _entry(document: dict[str, Any], section: str, name: str, kind: type[T]) -> T:
    if name not in document[section]:
        raise ValueError(f"it has no {section[:-1]} {name!r}")
    return _converted(document[section][name], kind, f"{section[:-1]} {name!r}")


def _converted(written: Any, kind: type[T], what: str) -> T:
    try:
        return convert(written, kind)
    except ConversionError as error:
        raise ValueError(f"{what}: {error}") from error


def _proxy(cluster: _KubeconfigCluster, name: str, environ: Mapping[str, str]) -> Proxy | None:
    proxy, named = environment_proxy(cluster.server, environ), ""
    if cluster.proxy_url:
        proxy = Proxy(cluster.proxy_url, f"proxy-url of cluster {name!r}")
    elif proxy:
        named = "the environment's "
    if proxy and not is_http_url(proxy.url):
        socks = "; SOCKS is not supported" if "socks" in proxy.url else ""
        raise ValueError(
            f"{named}{proxy.named_by} is {proxy.url!r}, not a URL such as http://HOST:PORT{socks}"
        )
    return proxy


def _impersonation(user: _KubeconfigUser) -> Iterator[tuple[str, str]]:
    """Yield the impersonation headers that client-go sends for this user."""
    for key, values in (user.as_user_extra or {}).items():
        for each in values or ():
            yield f"Impersonate-Extra-{quote(key, _HEADER_NAME)}", each
    if user.as_:
        yield "Impersonate-User", user.as_
    if user.as_uid:
        yield "Impersonate-Uid", user.as_uid
    for group in user.as_groups or ():
        yield "Impersonate-Group", group


def _in_cluster(service_account: Path, environ: Mapping[str, str]) -> Access:
    """Return the access with the service account that Kubernetes mounts into this pod."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace = read_bounded(service_account / "namespace", MIB).decode().strip()
    tls = ClusterTls(server, _pem_of(str(service_account / "ca.crt"), None, ""), insecure=False)
    return Access(
        server, TokenFileCredentials(service_account / "token", tls.with_client()), namespace
    )


def _credentials(
    cluster: _KubeconfigCluster, user: _KubeconfigUser, plugin_s: float
) -> Credentials:
    authority = _pem_of(
        cluster.certificate_authority,
        cluster.certificate_authority_data,
        "certificate-authority-data",
    )
    tls = ClusterTls(cluster.server, authority, insecure=cluster.insecure_skip_tls_verify)
    if user.exec:
        plugin = _converted(user.exec, ExecConfig, "exec of the user")
        return ExecCredentials(
            plugin, _cluster_info(cluster, tls), tls.with_client, seconds=plugin_s
        )
    if user.auth_provider:
        raise ValueError("auth-provider is no longer part of kubeconfigs; use an exec plugin")
    certificate = _pem_of(
        user.client_certificate, user.client_certificate_data, "client-certificate-data"
    )
    key = _pem_of(
        user.client_key or user.client_certificate, user.client_key_data, "client-key-data"
    )
    context = tls.with_client(certificate, key)
    if user.token_file:
        return TokenFileCredentials(Path(user.token_file), context)
    if user.token:
        return FixedCredentials(bearer(user.token), context)
    if user.username and user.password:
        return FixedCredentials(basic(user.username, user.password), context)
    return FixedCredentials(None, context)


def _pem_of(file: str | None, data: str | None, field: str) -> str:
    """Return the PEM text in ``data`` (base64), or in ``file`` if ``data`` is empty.

    The text is empty if both are empty. ``field`` is the kubeconfig's name for ``data``.
    """
    if data:
        try:
            pem = base64.b64decode("".join(data.split()), validate=True)
        except ValueError as error:
            raise ValueError(f"{field}: must be base64") from error
    else:
        pem = read_bounded(file, _MOST_BYTES) if file else b""
    # ssl accepts only ASCII. Comments between certificates may have other characters.
    return pem.decode("ascii", errors="replace").replace("\ufffd", "?")


def _cluster_info(cluster: _KubeconfigCluster, tls: ClusterTls) -> dict[str, Any]:
    """Return the ``spec.cluster`` of an ExecCredential (client.authentication.k8s.io/v1)."""
    info: dict[str, Any] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
        "proxy-url": cluster.proxy_url,
        "certificate-authority-data": base64.b64encode(tls.authority.encode()).decode() or None,
    }
    for extension in cluster.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return {key: value for key, value in info.items() if value is not None}
