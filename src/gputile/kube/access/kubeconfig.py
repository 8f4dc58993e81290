"""Reads where the API server is and how to get in, from a kubeconfig or a service account."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from gputile.api.conversion import ConversionError, convert
from gputile.api.names import broken_label_name
from gputile.api.units import MIB
from gputile.kube.access.client_config import ClientConfigCluster, ClientConfigContext, ClientConfigUser
from gputile.kube.access.credentials import (
    Credentials,
    FixedCredentials,
    TokenFileCredentials,
    basic,
    bearer,
    read_token,
)
from gputile.kube.access.exec_plugin import PLUGIN_S, ExecConfig, ExecCredentials
from gputile.kube.access.impersonation import Headers, impersonation
from gputile.kube.access.proxies import Proxy, environment_proxy
from gputile.kube.access.tls import ClusterTls
from gputile.kube.errors import ConfigError
from gputile.support.files import read_bounded
from gputile.support.yaml_loader import load_document

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DEFAULT_NAMESPACE = "default"
T = TypeVar("T")
_MOST_BYTES: Final = 16 * MIB  # a cluster with its user takes 4 KiB
_SECTIONS = ("clusters", "contexts", "users")
_PATHS = {
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key", "tokenFile"),
}


@dataclass(frozen=True)
class Access:
    """All that a connection needs to know. ``server`` is a URL without a trailing slash.

    ``impersonation`` are headers that each request carries.
    """

    server: str
    credentials: Credentials
    namespace: str = DEFAULT_NAMESPACE
    tls_server_name: str | None = None
    proxy: Proxy | None = None
    impersonation: Headers = ()


def load_access(
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: str | Path = SERVICE_ACCOUNT,
    plugin_s: float = PLUGIN_S,
) -> Access:
    """Return the access that ``kubeconfig``, else $KUBECONFIG, else ~/.kube/config, else the service account gives.

    ``context`` names another context than the current one of the kubeconfig. $KUBECONFIG may list several files, of
    which the first to define something wins. An exec plugin has ``plugin_s`` seconds for its credential.

    Raises:
        ConfigError: there is no usable configuration, and what is the matter with it.
    """
    files = _files(kubeconfig, environ)
    try:
        if files:
            return _access(_merge(files), context, environ, plugin_s)
        if context is None and "KUBERNETES_SERVICE_HOST" in environ:
            return _in_cluster(Path(service_account), environ)
    except OSError as error:
        raise ConfigError(f"cannot use {_named(files)}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"cannot use {_named(files)}: {error}") from error
    except KeyError as error:
        raise ConfigError(f"cannot use {_named(files)}: {error} is missing") from error
    raise ConfigError("no kubeconfig: give a path, set $KUBECONFIG, write ~/.kube/config, or run in a pod")


def context_names(kubeconfig: str | Path | None = None, *, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the contexts that ``load_access`` takes.

    Raises:
        OSError, ValueError, KeyError: a file cannot be read, or is no kubeconfig.
    """
    return [entry["name"] for entry in _merge(_files(kubeconfig, environ))["contexts"]]


def _named(files: list[Path]) -> str:
    return "kubeconfig " + os.pathsep.join(map(str, files)) if files else "the pod's service account"


def _files(kubeconfig: str | Path | None, environ: Mapping[str, str]) -> list[Path]:
    if kubeconfig:
        return [_with_home(kubeconfig)]
    if environ.get("KUBECONFIG"):
        named = [Path(each) for each in environ["KUBECONFIG"].split(os.pathsep) if each]
        return [each for each in named if each.is_file()] or named
    home = _with_home(environ.get("HOME", "~")) / ".kube" / "config"
    return [home] if home.is_file() else []


def _with_home(path: str | Path) -> Path:
    """Return the path with the home directory that "~" stands for; as it is where nobody has that home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _merge(files: list[Path]) -> dict[str, Any]:
    merged: dict[str, Any] = {"clusters": {}, "contexts": {}, "users": {}}
    for file in files:
        document = load_document(read_bounded(file, _MOST_BYTES))
        if document is None and len(files) > 1:
            continue  # people put one first for kubectl to write to
        if document is None:
            raise ValueError(f"{file} is empty")
        if not isinstance(document, dict):
            raise ValueError(f"{file} is no mapping")
        if not merged.get("current-context"):
            merged["current-context"] = document.get("current-context")
        for section in _SECTIONS:
            for entry in _entries(document.get(section), section):
                merged[section].setdefault(entry["name"], _absolute(section, entry, file.absolute().parent))
    for section in _SECTIONS:
        merged[section] = list(merged[section].values())
    return merged


def _entries(written: Any, section: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of a section. What is in them is judged when it is used: an entry of no use may be wrong."""
    if not isinstance(written, list | None):
        raise ValueError(f"{section} is no list")
    for entry in written or ():
        if not isinstance(entry, dict):
            raise ValueError(f"an entry of {section} is no mapping")
        if not isinstance(entry["name"], str):
            raise ValueError(f"a name in {section} is no text")
        if not isinstance(entry[section[:-1]], dict | None):
            raise ValueError(f"{section[:-1]} of {entry['name']!r} is no mapping")
        yield entry


def _absolute(section: str, entry: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return an entry whose files are absolute: they are relative to the kubeconfig's place."""
    inner = dict(entry[section[:-1]] or {})
    for key in _PATHS.get(section, ()):
        if inner.get(key) and isinstance(inner[key], str):
            inner[key] = str(directory / inner[key])
    plugin = inner.get("exec")
    command = plugin.get("command") if isinstance(plugin, dict) else None
    if isinstance(plugin, dict) and isinstance(command, str) and os.sep in command:
        inner["exec"] = plugin | {"command": str(directory / command)}
    return entry | {section[:-1]: inner}


def _access(document: dict[str, Any], name: str | None, environ: Mapping[str, str], plugin_s: float) -> Access:
    chosen = name or document.get("current-context")
    if not chosen:
        raise ValueError("it has no current context, and none is named")
    context = _entry(document, "contexts", chosen, ClientConfigContext)
    cluster = _entry(document, "clusters", context.cluster, ClientConfigCluster)
    user = _entry(document, "users", context.user, ClientConfigUser) if context.user else ClientConfigUser()
    if context.namespace and (why := broken_label_name(context.namespace)):
        raise ValueError(f"namespace of context {chosen!r}: {why}")
    server = cluster.server.rstrip("/")
    _check_server(server, context.cluster)
    if not (cluster.tls_server_name or "").isprintable():
        raise ValueError(f"tls-server-name of cluster {context.cluster!r} is not a host name")
    return Access(
        server=server,
        credentials=_credentials(cluster, user, plugin_s),
        namespace=context.namespace or DEFAULT_NAMESPACE,
        tls_server_name=cluster.tls_server_name or None,
        proxy=_proxy(cluster, context.cluster, environ),
        impersonation=impersonation(user, context.user or ""),
    )


def _check_server(server: str, cluster: str) -> None:
    if not _is_url(server):
        raise ValueError(f"server of cluster {cluster!r} is {server!r}, not a URL such as https://HOST:PORT")


def _proxy(cluster: ClientConfigCluster, name: str, environ: Mapping[str, str]) -> Proxy | None:
    if not cluster.proxy_url:
        proxy = environment_proxy(cluster.server, environ)
        if proxy and not _is_url(proxy.url):
            raise ValueError(f"the environment's {proxy.named_by} is {proxy.url!r}, not {_usable(proxy.url)}")
        return proxy
    if not _is_url(cluster.proxy_url):
        said = f"proxy-url of cluster {name!r} is {cluster.proxy_url!r}"
        raise ValueError(f"{said}, not {_usable(cluster.proxy_url)}")
    return Proxy(cluster.proxy_url, f"proxy-url of cluster {name!r}")


def _usable(proxy: str) -> str:
    return f"a URL such as http://HOST:PORT{'; SOCKS is not supported' if 'socks' in proxy else ''}"


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        return text.isprintable() and url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port out of range, a bracket that is not closed
        return False


def _in_cluster(service_account: Path, environ: Mapping[str, str]) -> Access:
    """Return what the kubelet gives every pod (Kubernetes, "Accessing the Kubernetes API from a Pod")."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    cluster = ClientConfigCluster(server=server, certificate_authority=str(service_account / "ca.crt"))
    token = service_account / "token"
    read_token(token)  # a pod without one cannot get in, and is told now
    namespace = read_bounded(service_account / "namespace", MIB).decode().strip()
    return Access(server, _credentials(cluster, ClientConfigUser(token_file=str(token))), namespace)


def _entry(document: dict[str, Any], section: str, name: str, kind: type[T]) -> T:
    kept = section[:-1]
    for each in document[section]:
        if each["name"] == name:
            return _converted(each[kept] or {}, kind, f"{kept} {name!r}")
    raise ValueError(f"it has no {kept} {name!r}")


def _converted(written: Any, kind: type[T], what: str) -> T:
    try:
        return convert(written, kind)
    except ConversionError as error:
        raise ValueError(f"{what}: {error}") from error


def _credentials(cluster: ClientConfigCluster, user: ClientConfigUser, plugin_s: float = PLUGIN_S) -> Credentials:
    tls = ClusterTls(cluster)
    if user.exec:
        plugin = _converted(user.exec, ExecConfig, "exec of the user")
        return ExecCredentials(plugin, _told_to_plugin(cluster, tls), tls.with_pem, seconds=plugin_s)
    if user.auth_provider:
        raise ValueError("auth-provider is no longer part of kubeconfigs; use an exec plugin")
    context = tls.of_user(user)
    if user.token_file:
        return TokenFileCredentials(Path(user.token_file), context)
    if user.token:
        return FixedCredentials(bearer(user.token), context)
    if user.username and user.password:
        return FixedCredentials(basic(user.username, user.password), context)
    return FixedCredentials(None, context)


def _told_to_plugin(cluster: ClientConfigCluster, tls: ClusterTls) -> dict[str, Any]:
    """Return the ``spec.cluster`` of an ExecCredential (client.authentication.k8s.io/v1)."""
    told: dict[str, Any] = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
        "proxy-url": cluster.proxy_url,
        "certificate-authority-data": tls.authority_data or None,
    }
    for extension in cluster.extensions or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            told["config"] = extension.get("extension")
    return {key: value for key, value in told.items() if value is not None}
