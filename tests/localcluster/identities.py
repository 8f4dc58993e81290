"""Who may speak to the API server: client certificates, and kubeconfig files with everything embedded.

A control plane that lives for one test run has one authority, with short-lived elliptic-curve keys.
"""

import base64
import datetime
import ipaddress
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=7)
CLUSTER = "gputile-test"
ADMIN_GROUPS = ("system:masters",)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that writes what it issues into ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("gputile-test-ca", ())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        signed = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def client(self, file_name: str, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Issue what the API server takes for ``user`` of ``groups``: common name and organisations."""
        return self._issue(file_name, _name(user, groups), [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])])

    def server(self, file_name: str, hosts: Sequence[str]) -> KeyPair:
        """Issue a serving certificate for names and IP addresses."""
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return self._issue(file_name, _name(hosts[0], ()), [alternatives, usage])

    def _issue(self, file_name: str, subject: x509.Name, extensions: Sequence[x509.ExtensionType]) -> KeyPair:
        pair = KeyPair(self.directory / f"{file_name}.crt", self.directory / f"{file_name}.key")
        key = write_key(pair.key)
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return pair


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key at ``path``: also the one that signs service-account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return key


def _builder(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Users:
    """Users of the API server at ``url``, each made when first asked for; may be used from several threads."""

    def __init__(self, authority: Authority, url: str) -> None:
        self._authority = authority
        self._url = url
        self._identities: dict[tuple[str, tuple[str, ...]], KeyPair] = {}
        self._lock = threading.Lock()

    def identity(self, user: str, groups: Sequence[str] | None = None) -> KeyPair:
        """Return a client certificate of ``user``; ``admin`` may do everything unless groups are given."""
        chosen = tuple(groups) if groups is not None else ADMIN_GROUPS if user == "admin" else ()
        with self._lock:
            if (user, chosen) not in self._identities:
                file_name = f"{len(self._identities)}-" + re.sub(r"[^\w.-]", "-", user)
                self._identities[user, chosen] = self._authority.client(file_name, user, chosen)
            return self._identities[user, chosen]

    def kubeconfig(self, user: str, groups: Sequence[str] | None = None) -> Path:
        """Return the path of a kubeconfig of ``user``, which has all that a client needs."""
        identity = self.identity(user, groups)
        path = identity.certificate.with_suffix(".kubeconfig")
        with self._lock:
            if not path.exists():
                pair = {"client-certificate": identity.certificate, "client-key": identity.key}
                client = {f"{name}-data": _base64(file) for name, file in pair.items()}
                write_kubeconfig(path, self._url, self._authority.certificate, client)
        return path


def write_kubeconfig(
    path: Path, url: str, authority: Path, user: Mapping[str, str], namespace: str = "default"
) -> None:
    """Write the kubeconfig of one user at ``path``; ``user`` is what it shows, a token or a certificate."""
    cluster = {"server": url, "certificate-authority-data": _base64(authority)}
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": cluster}],
        "users": [{"name": CLUSTER, "user": dict(user)}],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": CLUSTER, "namespace": namespace}}],
        "current-context": CLUSTER,
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
