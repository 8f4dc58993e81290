"""Kubeconfigs are read as kubectl reads them; what cannot be used is refused with its name."""

import base64
import json
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization

from gputile.kube.config import Access, load_access
from gputile.kube.credentials import Credential
from gputile.kube.errors import ConfigError
from gputile.kube.proxy import Proxy, environment_proxy
from tests.localcluster.identities import Authority

V1 = "client.authentication.k8s.io/v1"


def document(user: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "d", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}},
            {"name": "d", "cluster": {"server": "http://10.0.0.2:8080"}},
        ],
        "users": [{"name": "u", "user": user}],
    }


def load(directory: Path, content: dict[str, Any], context: str | None = None) -> Access:
    path = directory / "config"
    path.write_text(yaml.safe_dump(content))
    return load_access(path, context, environ={})


async def credential(access: Access) -> Credential:
    return await access.credentials.current()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ({}, None),
        ({"token": "t"}, "Bearer t"),
        ({"username": "a", "password": "b"}, "Basic " + base64.b64encode(b"a:b").decode()),
    ],
)
async def test_plain_credentials(tmp_path: Path, user: dict[str, Any], authorization: str | None) -> None:
    access = load(tmp_path, document(user, **{"tls-server-name": "api", "proxy-url": "http://proxy:3128"}))
    assert (access.server, access.namespace) == ("https://10.0.0.1:6443", "team")
    assert access.tls_server_name == "api"
    assert access.proxy == Proxy("http://proxy:3128", "proxy-url of cluster 'c'")
    assert (await credential(access)).authorization == authorization
    assert (await credential(access)).tls is not None


@pytest.mark.anyio
async def test_another_context_may_be_asked_for(tmp_path: Path) -> None:
    access = load(tmp_path, document({}), "there")
    assert (access.server, access.namespace) == ("http://10.0.0.2:8080", "default")
    assert (await credential(access)).tls is None
    with pytest.raises(ConfigError, match="nowhere"):
        load(tmp_path, document({}), "nowhere")


@pytest.mark.anyio
async def test_files_are_relative_to_the_kubeconfig_and_data_is_taken_as_it_is(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.client("client", "gputile")
    (tmp_path / "token").write_text("rotated")
    files = {"client-certificate": "client.crt", "client-key": "client.key", "tokenFile": "token"}
    from_files = await credential(load(tmp_path, document(files, **{"certificate-authority": "ca.crt"})))
    assert from_files.authorization == "Bearer rotated"
    encoded = [base64.b64encode(path.read_bytes()).decode() for path in (pair.certificate, pair.key)]
    data = {"client-certificate-data": encoded[0], "client-key-data": encoded[1]}
    ca = base64.b64encode(authority.certificate.read_bytes()).decode()
    from_data = await credential(load(tmp_path, document(data, **{"certificate-authority-data": ca})))
    for found in (from_files, from_data):
        assert found.tls is not None
        certificates: list[dict[str, Any]] = found.tls.get_ca_certs()
        assert [dict(part[0] for part in each["subject"])["commonName"] for each in certificates] == ["gputile-test-ca"]


@pytest.mark.anyio
async def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(yaml.safe_dump({"current-context": "there", "users": [{"name": "u", "user": {"token": "1"}}]}))
    second.write_text(yaml.safe_dump(document({"token": "2"})))
    environ = {"KUBECONFIG": f"{tmp_path / 'absent'}:{first}:{second}"}
    access = load_access(environ=environ)
    assert access.server == "http://10.0.0.2:8080"
    assert (await credential(access)).authorization == "Bearer 1"


def test_the_proxy_of_the_environment_is_used_and_judged(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document({})))
    found = load_access(path, environ={"HTTPS_PROXY": "proxy:3128"}).proxy
    assert found == Proxy("http://proxy:3128", "HTTPS_PROXY")
    assert load_access(path, environ={"HTTPS_PROXY": "proxy:3128", "NO_PROXY": "10.0.0.0/8"}).proxy is None
    with pytest.raises(ConfigError, match=r"the environment's HTTPS_PROXY is 'socks5://a:1', not a URL .*SOCKS is not"):
        load_access(path, environ={"HTTPS_PROXY": "socks5://a:1"})


def test_as_whom_a_user_acts(tmp_path: Path) -> None:
    """The headers are those that client-go sends."""
    user = {"as": "somebody", "as-uid": "7", "as-groups": ["a", "ü"], "as-user-extra": {"acme.com/pro%ject": ["p"]}}
    assert load(tmp_path, document(user)).impersonation == (
        ("Impersonate-Extra-acme.com%2Fpro%25ject", "p"),
        ("Impersonate-User", "somebody"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "ü"),
    )


@pytest.mark.anyio
async def test_the_service_account_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Authority(tmp_path)
    (tmp_path / "token").write_text("pod-token")
    (tmp_path / "namespace").write_text("kube-system")
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    access = load_access(environ=environ, service_account=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "kube-system")
    assert (await credential(access)).authorization == "Bearer pod-token"
    with pytest.raises(ConfigError, match="service account"):
        load_access(environ=environ, service_account=tmp_path / "absent")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "config"),
        ("[]", "must be a mapping, is a list"),
        ("clusters: [{}]", "name: Required value"),
        ("{}", "no current context"),
        ("clusters: []\nclusters: []", "'clusters' is written twice"),
        ("current-context: 2026-13-01", "no context '2026-13-01'"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_said(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError, match=why):
        load_access(path, environ={})


@pytest.mark.parametrize(
    ("cluster", "user", "why"),
    [
        (None, {}, "server"),
        *(({"server": server}, {}, "not a URL such as https://HOST:PORT") for server in ("", "https://a:b", "a:6443")),
        (
            {"server": "https://a", "certificate-authority-data": "%%%"},
            {},
            ": certificate-authority-data: must be base64",
        ),
        ({"server": "https://a", "certificate-authority-data": "aGk="}, {}, "does not contain a certificate"),
        ({"server": "https://a", "certificate-authority": "/absent"}, {}, "/absent: No such file"),
        ({"server": "https://a"}, {"client-certificate-data": "aGk="}, "SSL|PEM"),
        ({"server": "https://a"}, {"client-certificate": "/absent"}, "/absent: No such file"),
        ({"server": "https://a", "proxy-url": "socks5://a:1"}, {}, "proxy-url of cluster 'c' is '.*', not a URL such"),
        ({"server": "https://a"}, {"exec": {"apiVersion": V1, "command": 5}}, "command"),
        ({"server": "https://a"}, {"tokenFile": "absent"}, "cannot read the token file"),
        ({"server": "https://a"}, {"token": "a\r\nX: y"}, "one line of printable ASCII"),
    ],
)
@pytest.mark.anyio
async def test_what_is_wrong_with_an_entry_is_said(tmp_path: Path, cluster: Any, user: Any, why: str) -> None:
    content = document(user)
    content["clusters"][0]["cluster"] = cluster
    with pytest.raises(ConfigError, match=why):
        await credential(load(tmp_path, content))
    assert load(tmp_path, document({}), "there"), "an entry that is not asked for may be wrong"


def test_a_key_with_a_pass_phrase_does_not_ask_the_terminal(tmp_path: Path) -> None:
    pair = Authority(tmp_path).client("client", "gputile")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"secret")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted)
    (tmp_path / "locked").write_bytes(key.private_bytes(*form))
    with pytest.raises(ConfigError, match="the key is protected by a passphrase"):
        load(tmp_path, document({"client-certificate": str(pair.certificate), "client-key": "locked"}))


def test_no_configuration_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KUBECONFIG"):
        load_access(environ={"HOME": str(tmp_path)})


def plugin(directory: Path, answer: dict[str, Any], code: int = 0) -> dict[str, Any]:
    """An exec plugin that notes what it was told, and how often it ran."""
    script = directory / "plugin"
    script.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"with open({str(directory / 'told')!r}, 'a') as told:\n"
        "    print(os.environ['KUBERNETES_EXEC_INFO'], os.environ['EXTRA'], *sys.argv[1:], file=told)\n"
        f"print({json.dumps(answer)!r})\n"
        f"sys.exit({code})\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {
        "apiVersion": V1,
        "command": "./plugin",
        "args": ["get-token"],
        "env": [{"name": "EXTRA", "value": "e"}],
        "provideClusterInfo": True,
        "interactiveMode": "IfAvailable",
    }


def answer(**status: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": "ExecCredential", "status": status}


@pytest.mark.anyio
async def test_an_exec_plugin_gives_a_token_that_is_kept_until_it_expires_or_is_refused(tmp_path: Path) -> None:
    Authority(tmp_path)
    section = plugin(tmp_path, answer(token="t", expirationTimestamp="2099-01-01T00:00:00Z"))
    access = load(tmp_path, document({"exec": section}, **{"certificate-authority": "ca.crt"}))

    first = await access.credentials.current()
    assert first.authorization == "Bearer t"
    assert await access.credentials.current() is first
    assert access.credentials.invalidate(first)
    assert await access.credentials.current() is not first
    runs = (tmp_path / "told").read_text().splitlines()
    assert len(runs) == 2
    info, extra = runs[0].rsplit("} ", 1)
    told = json.loads(info + "}")
    assert extra == "e get-token"
    assert told["apiVersion"] == V1
    assert told["spec"]["interactive"] is False
    assert told["spec"]["cluster"]["server"] == "https://10.0.0.1:6443/"
    authority = (tmp_path / "ca.crt").read_bytes()
    assert base64.b64decode(told["spec"]["cluster"]["certificate-authority-data"]) == authority


@pytest.mark.anyio
async def test_an_expired_exec_credential_is_fetched_again(tmp_path: Path) -> None:
    past = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    access = load(tmp_path, document({"exec": plugin(tmp_path, answer(token="t", expirationTimestamp=past))}))

    await access.credentials.current()
    await access.credentials.current()
    assert len((tmp_path / "told").read_text().splitlines()) == 2


@pytest.mark.anyio
async def test_an_exec_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    pair = Authority(tmp_path).client("client", "gputile")
    certificate, key = pair.certificate.read_text(), pair.key.read_text()
    section = plugin(tmp_path, answer(clientCertificateData=certificate, clientKeyData=key))
    found = await credential(load(tmp_path, document({"exec": section})))
    assert found.authorization is None
    assert found.tls is not None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("change", "given", "code", "why"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, answer(token="t"), 0, "uses"),
        ({"interactiveMode": "Always"}, answer(token="t"), 0, "terminal"),
        ({"command": "./absent", "installHint": "install it"}, answer(token="t"), 0, "install it"),
        ({}, answer(token="t"), 3, "status 3"),
        ({}, {"apiVersion": "other/v1", "status": {"token": "t"}}, 0, "other/v1"),
        ({}, answer(token="a\nb"), 0, "invalid token: a token must be one line"),
        ({}, answer(clientCertificateData="hi", clientKeyData="hi"), 0, "certificate and key that cannot be used"),
    ],
)
async def test_what_is_wrong_with_an_exec_plugin_is_said(
    tmp_path: Path, change: dict[str, Any], given: dict[str, Any], code: int, why: str
) -> None:
    section = {**plugin(tmp_path, given, code), **change}
    with pytest.raises(ConfigError, match=why):
        await credential(load(tmp_path, document({"exec": section})))


PROXY = {"HTTPS_PROXY": "http://proxy:3128", "HTTP_PROXY": "http://plain:3128"}


@pytest.mark.parametrize(
    ("server", "no_proxy", "direct"),
    [
        ("https://localhost:6443", "", True),
        ("https://127.0.0.1:6443", "", True),
        ("https://10.1.2.3", "", False),
        ("https://10.1.2.3", " 192.168.0.0/16 , 10.0.0.0/8", True),
        ("https://10.1.2.3", "10.1.2.3:443", True),
        ("https://10.1.2.3", "10.1.2.3:6443", False),
        ("https://110.1.2.3", "10.1.2.3", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://API.Example.com", "example.com", True),
        ("https://badexample.com", "example.com", False),
        ("https://api.example.com", ".example.com", True),
        ("https://example.com", ".example.com", False),
        ("https://api.example.com", "*", True),
    ],
)
def test_where_no_proxy_counts(server: str, no_proxy: str, direct: bool) -> None:
    found = environment_proxy(server, {**PROXY, "NO_PROXY": no_proxy})
    assert (found is None) is direct


def test_which_variable_counts() -> None:
    """The capital one goes first, an empty one counts for nothing, and a scheme has its own."""
    assert environment_proxy("https://a", {}) is None
    assert environment_proxy("http://a", PROXY) == Proxy("http://plain:3128", "HTTP_PROXY")
    both = {"https_proxy": "http://small:1", "no_proxy": "a"}
    assert environment_proxy("https://b", both) == Proxy("http://small:1", "https_proxy")
    assert environment_proxy("https://b", {**both, "HTTPS_PROXY": ""}) == Proxy("http://small:1", "https_proxy")
    assert environment_proxy("https://b", {**both, **PROXY}) == Proxy("http://proxy:3128", "HTTPS_PROXY")
    assert environment_proxy("https://a", both) is None
    assert environment_proxy("https://a", {"HTTPS_PROXY": "host:3128"}) == Proxy("http://host:3128", "HTTPS_PROXY")
    assert environment_proxy("https://a", {"ALL_PROXY": "http://host:3128"}) is None
