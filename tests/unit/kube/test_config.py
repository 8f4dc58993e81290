"""Kubeconfigs are read as kubectl reads them; what cannot be used is refused with its name."""

import asyncio
import base64
import contextlib
import json
import stat
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from gputile.kube.config import Access, load_access
from gputile.kube.credentials import Credential
from gputile.kube.errors import ConfigError
from gputile.kube.proxies import Proxy
from tests.fakes.oddfiles import ODD
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


def test_an_empty_file_among_several_counts_for_nothing(tmp_path: Path) -> None:
    """People put one first, for kubectl to write the current context to."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("# mine\n")
    second.write_text(yaml.safe_dump(document({})))
    assert load_access(environ={"KUBECONFIG": f"{first}:{second}"}).server == "https://10.0.0.1:6443"
    with pytest.raises(ConfigError, match="no current context"):
        load_access(environ={"KUBECONFIG": f"{first}:{first}"})


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
    for key, value in {"as-uid": "7", "as-groups": ["g"], "as-user-extra": {"k": ["v"]}}.items():
        with pytest.raises(ConfigError, match="user 'u': as-uid, as-groups and as-user-extra need as"):
            load(tmp_path, document({key: value}))
    with pytest.raises(ConfigError, match="cannot be sent as Impersonate-User"):
        load(tmp_path, document({"as": "a\r\nX: y"}))


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
        ("[]", "no mapping"),
        ("", "is empty"),
        ("clusters: [{}]", "name"),
        ("{}", "no current context"),
        ("clusters: 5", "clusters is no list"),
        ("clusters: {c: {server: s}}", "clusters is no list"),
        ("clusters: [5]", "an entry of clusters is no mapping"),
        ("users: [{name: [a], user: {}}]", "a name in users is no text"),
        ("users: [{name: u, user: 5}]", "user of 'u' is no mapping"),
        ("clusters: [{name: c}]", "'cluster' is missing"),
        ("clusters: []\nclusters: []", "'clusters' is written twice"),
        ("[" * 100_000, "deeper than 100 levels"),
        ("clusters: " + "[" * 100_000, "deeper than 100 levels"),
        ("current-context: 2026-13-01", "no context '2026-13-01'"),
    ],
    ids=range(15),
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
        ({"server": 5}, {}, "server"),
        ({"server": "https://a", "certificate-authority": 5}, {}, "certificate-authority"),
        ({"server": "https://a", "certificate-authority-data": "w7w="}, {}, "certificate"),
        *(
            ({"server": server}, {}, "not a URL such as https://HOST:PORT")
            for server in (
                "",
                "https://a\0b",
                "https://a/\x1b",
                "https://[",
                "https://a:99999",
                "https://a:0",
                "https://a:b",
                "https://a..b",
                "ftp://a",
                "a:6443",
                "//a",
            )
        ),
        ({"server": "https://a", "tls-server-name": "\0"}, {}, "tls-server-name of cluster 'c' is not a host name"),
        ({"server": "https://a", "certificate-authority-data": "%%%"}, {}, "authority-data: must be base64"),
        ({"server": "https://a", "certificate-authority-data": "aGk="}, {}, "certificate-authority: no PEM"),
        ({"server": "https://a", "certificate-authority": "/absent"}, {}, r"authority \(/absent\): No such file"),
        ({"server": "https://a"}, {"client-certificate-data": "%"}, "client-certificate-data: must be base64"),
        ({"server": "https://a"}, {"client-certificate-data": "aGk="}, "client-key-data: no PEM that can be used"),
        ({"server": "https://a"}, {"client-certificate": "/absent"}, r"client-key \(/absent\): No such file"),
        *(
            ({"server": "https://a", "proxy-url": proxy}, {}, "proxy-url of cluster 'c' is '.*', not a URL such as")
            for proxy in ("socks5://a:1", "socks9://a", "a:3128", "http://", "http://a:b")
        ),
        ({"server": "https://a"}, {"exec": 5}, "exec"),
        ({"server": "https://a"}, {"exec": {"apiVersion": V1, "command": 5}}, "command"),
        ({"server": "https://a"}, {"client-certificate": ["a"]}, "client-certificate"),
        ({"server": "https://a"}, {"tokenFile": {}}, "tokenFile"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(tmp_path: Path, cluster: Any, user: Any, why: str) -> None:
    content = document(user)
    content["clusters"][0]["cluster"] = cluster
    with pytest.raises(ConfigError, match=why):
        load(tmp_path, content)
    assert load(tmp_path, document({}), "there"), "an entry that is not asked for may be wrong"


@pytest.mark.anyio
async def test_a_user_without_anything_is_one(tmp_path: Path) -> None:
    content = document({})
    content["users"][0]["user"] = None
    assert (await credential(load(tmp_path, content))).authorization is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["", "a", "http://a", "https://[", "/x", "\x00", "ü", V1]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "command", "apiVersion", "env", "extension"]), inner, max_size=3)
    ),
    max_leaves=4,
)
CLUSTER = ["server", "certificate-authority", "certificate-authority-data", "extensions", "proxy-url"]
USER = ["token", "tokenFile", "exec", "client-certificate", "client-key", "client-certificate-data", "auth-provider"]
USER += ["as", "as-uid", "as-groups", "as-user-extra"]


@given(
    VALUES | st.dictionaries(st.sampled_from(CLUSTER), VALUES),
    VALUES | st.dictionaries(st.sampled_from(USER), VALUES),
    VALUES | st.dictionaries(st.sampled_from(["cluster", "user", "namespace"]), VALUES | st.sampled_from(["c", "u"])),
    st.dictionaries(st.sampled_from(["clusters", "users", "contexts", "current-context"]), VALUES, max_size=1),
)
def test_any_kubeconfig_can_be_used_or_is_told_off(
    tmp_path_factory: pytest.TempPathFactory, cluster: Any, user: Any, context: Any, sections: dict[str, Any]
) -> None:
    content = document({})
    content["clusters"][0]["cluster"], content["users"][0]["user"] = cluster, user
    if context:
        content["contexts"][0]["context"] = context
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_text(json.dumps(content | sections))
    with contextlib.suppress(ConfigError):
        load_access(path, environ={})


ODD_FILES = [("device", "larger than"), ("directory", "directory"), ("pipe", "pipe"), ("huge", "than")]


@pytest.mark.anyio
@pytest.mark.requirement("B4")
@pytest.mark.parametrize(("kind", "why"), ODD_FILES)
@pytest.mark.parametrize("field", ["tokenFile", "client-certificate", "client-key", "certificate-authority", "config"])
async def test_whatever_stands_in_a_files_place_is_said(tmp_path: Path, field: str, kind: str, why: str) -> None:
    """A device has no end, and nobody writes to the pipe."""
    pair = Authority(tmp_path).client("client", "gputile")
    ODD[kind](tmp_path / "odd")
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)} if "client" in field else {}
    cluster = {field: "odd"} if field == "certificate-authority" else {}
    given = document(user if cluster else user | {field: "odd"}, **cluster)
    said = "a device" if kind == "device" and "client" in field else why
    path = tmp_path / "odd"
    if field != "config":
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError, match=rf"odd.*{said}"):
        await credential(load_access(path, environ={}))


@pytest.mark.anyio
@pytest.mark.parametrize("token", [b"a\nb", b"\xff\xfe", b"", b"a\x00b", "é".encode()])
async def test_a_file_that_holds_no_token_is_named(tmp_path: Path, token: bytes) -> None:
    (tmp_path / "token").write_bytes(token)
    with pytest.raises(ConfigError, match=r"the token file .*token"):
        await credential(load(tmp_path, document({"tokenFile": "token"})))


@pytest.mark.parametrize("name", ["a/b", "../x", "a b", "x\r\nX: y", "A", "a" * 64])
def test_a_contexts_namespace_is_a_name_before_it_is_part_of_a_path(tmp_path: Path, name: str) -> None:
    content = document({})
    content["contexts"][0]["context"]["namespace"] = name
    with pytest.raises(ConfigError, match="namespace of context 'here': Invalid value"):
        load(tmp_path, content)


def test_a_token_cannot_add_a_header(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config: .*one line of ASCII"):
        load(tmp_path, document({"token": "a\r\nX: y"}))


def test_a_key_with_a_pass_phrase_does_not_ask_the_terminal(tmp_path: Path) -> None:
    pair = Authority(tmp_path).client("client", "gputile")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"secret")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted)
    (tmp_path / "locked").write_bytes(key.private_bytes(*form))
    with pytest.raises(ConfigError, match=r"client-key \(.*locked\): the key is protected by a pass phrase"):
        load(tmp_path, document({"client-certificate": str(pair.certificate), "client-key": "locked"}))


def test_no_configuration_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KUBECONFIG"):
        load_access(environ={"HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match="absent"):
        load_access(tmp_path / "absent", environ={})


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
    assert access.credentials.refused(first)
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


HOSTILE = {
    "stdout": ("exec yes", "wrote more than 1 MiB, and was ended"),
    "stderr": ("exec yes nnnnn >&2", "no credential within 0.5 s, and was ended: .*nnnnn"),
    "sleeping": ("echo see https://login >&2; sleep 100", "within 0.5 s, and was ended: see https://login"),
    "deaf": ("trap '' TERM INT HUP; while : ; do sleep 100; done", "no credential within 0.5 s"),
    "child": ("sleep 100 & sleep 100", "no credential within 0.5 s"),
    "killed": ("kill -9 $$", "was ended by signal 9"),
    "empty": ("exit 0", "no ExecCredential"),
}


def script(directory: Path, text: str) -> dict[str, Any]:
    """An exec plugin in the shell's language; all its processes have a name of their own."""
    (directory / "plugin").write_text(f"#!/bin/sh\nMARK={directory}; export MARK\n{text}\n")
    (directory / "plugin").chmod(0o755)
    return {"apiVersion": V1, "command": "./plugin"}


def left(directory: Path) -> list[str]:
    """Return the processes that a script has started and that still run."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"MARK={directory}".encode() in environment.read_bytes().split(b"\0"):
                found.append(environment.parent.name)
    return found


async def gone(directory: Path) -> None:
    """Return when the kernel has ended all of them; those that nobody ends make the test fail."""
    for _ in range(500):
        if not left(directory):
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"still there: {left(directory)}")


@pytest.mark.anyio
@pytest.mark.requirement("B4")
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_exec_plugin_ends_in_time_with_its_children(tmp_path: Path, name: str) -> None:
    text, why = HOSTILE[name]
    section = script(tmp_path, text)
    (tmp_path / "config").write_text(yaml.safe_dump(document({"exec": section})))
    access = load_access(tmp_path / "config", environ={}, plugin_s=0.5 if "0.5 s" in why else 60)
    assert access.credentials.waits_for == f"the credential plugin {tmp_path / 'plugin'}"
    with pytest.raises(ConfigError, match=f"exec plugin {tmp_path}/plugin .*{why}"):
        await access.credentials.current()
    await gone(tmp_path)


@pytest.mark.anyio
async def test_a_plugin_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    access = load(tmp_path, document({"exec": script(tmp_path, f"sleep 100 & touch {tmp_path}/begun; sleep 100")}))
    waiting = asyncio.ensure_future(access.credentials.current())
    while not (tmp_path / "begun").exists():  # noqa: ASYNC110  # it is another process that begins
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await gone(tmp_path)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("change", "given", "code", "why"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, answer(token="t"), 0, "speaks"),
        ({"interactiveMode": "Always"}, answer(token="t"), 0, "terminal"),
        ({"command": "./absent", "installHint": "install it"}, answer(token="t"), 0, "install it"),
        ({}, answer(token="t"), 3, "status 3"),
        ({}, answer(), 0, "neither"),
        ({}, {"apiVersion": "other/v1", "status": {"token": "t"}}, 0, "other/v1"),
        ({}, {"token": "t"}, 0, "no ExecCredential"),
        ({"args": ["a\0b"]}, answer(token="t"), 0, "args or env cannot be given"),
        ({"env": [{"name": "A=B", "value": ""}]}, answer(token="t"), 0, "args or env cannot be given"),
        ({}, answer(token="a\nb"), 0, "token of no use: a token must be one line"),
        ({}, answer(clientCertificateData="hi", clientKeyData="hi"), 0, "certificate and key that cannot be used"),
    ],
)
async def test_what_is_wrong_with_an_exec_plugin_is_said(
    tmp_path: Path, change: dict[str, Any], given: dict[str, Any], code: int, why: str
) -> None:
    section = {**plugin(tmp_path, given, code), **change}
    with pytest.raises(ConfigError, match=why):
        await credential(load(tmp_path, document({"exec": section})))
