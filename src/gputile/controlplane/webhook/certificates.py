"""Maintains the webhook's certificate, its Secret, and the CA in the webhook configurations.

Each replica polls the Secret, and serves the certificate that it contains. So a renewal, for
example by cert-manager, needs no restart. If the certificate is missing or unusable, a replica
stores a self-signed certificate. Writes are conditional on the Secret's resourceVersion. If two
replicas write at the same time, the second write fails, and that replica reads the stored
certificate at its next attempt. The webhook configurations get ``ca.crt`` before the certificate is
served, because the API server would otherwise refuse the connection.
"""

import asyncio
import base64
import binascii
import logging
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gputile.api.conversion import ConversionError
from gputile.api.conversion import decode as decode_json
from gputile.kube.client import STRATEGIC_MERGE_PATCH, SYSTEM_CLOCK, Clock, Connection
from gputile.kube.errors import BadAnswer, KubeError, NotFound

log = logging.getLogger(__name__)

LIFETIME: Final = timedelta(days=3650)
RENEW_BEFORE: Final = timedelta(hours=1)  # cert-manager and other tools renew earlier
SKEW: Final = timedelta(hours=1)  # the largest difference between the clocks of a cluster
INTERVAL_SECONDS = 30.0
RETRY_SECONDS = 2.0
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate, its key, and the CA certificates that clients must trust, all in PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes

    @property
    def begins(self) -> datetime:
        return self._parsed().not_valid_before_utc

    @property
    def expires(self) -> datetime:
        return self._parsed().not_valid_after_utc

    def serves(self, names: Sequence[str], now: datetime) -> bool:
        """Return whether the certificate contains all ``names`` and is valid at ``now``.

        It must also remain valid for ``RENEW_BEFORE`` after ``now``.

        Raises:
            ValueError: the certificate cannot be read.
            x509.ExtensionNotFound: the certificate has no names.
        """
        found = self._parsed().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        has = {
            str(value)
            for kind in (x509.DNSName, x509.IPAddress)
            for value in found.get_values_for_type(kind)
        }
        return has.issuperset(names) and self.begins <= now < self.expires - RENEW_BEFORE

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the certificate into ``context``, for new connections.

        Raises:
            ssl.SSLError: OpenSSL rejects the certificate, for example because the key is weak or
                belongs to another certificate.
        """
        # Python's ssl can load certificates only from files.
        with tempfile.TemporaryDirectory() as directory:
            files = Path(directory, "tls.crt"), Path(directory, "tls.key")
            for file, content in zip(files, (self.certificate, self.key), strict=True):
                file.touch(mode=0o600)
                file.write_bytes(content)
            context.load_cert_chain(*files)

    def _parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)


def self_signed(names: Sequence[str], now: datetime, trusted: bytes = b"") -> ServingCertificate:
    """Return a new self-signed certificate for ``names``.

    ``trusted`` contains the CA certificates of the previous certificate, which other replicas may
    still serve. Clients must trust both certificates.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    pem = serialization.Encoding.PEM
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gputile-webhook {serial:040x}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(pem)
    )
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return ServingCertificate(certificate, private, certificate + trusted)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] = {}


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: str = ""


class _RegisteredWebhook(msgspec.Struct, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Webhooks(msgspec.Struct):
    metadata: _Meta
    webhooks: list[_RegisteredWebhook] = []


_SECRET = msgspec.json.Decoder(_Secret)
_WEBHOOKS = msgspec.json.Decoder(_Webhooks)


class CertificateKeeper:
    """Maintains the certificate of one webhook.

    ``names`` are the DNS names and addresses by which the API server may reach the webhook. The
    certificate is stored in the Secret ``secret`` in ``namespace``. Both webhook configurations
    have the name ``configuration``.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        names: Sequence[str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.problem: str | None = "there is no certificate yet"
        self.current: ServingCertificate | None = None
        self.served = asyncio.Event()  # set when a certificate has been loaded
        self._connection = connection
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self._secret = secret
        self._configuration = configuration
        self._names = tuple(names)
        self._now = clock.now
        self.sleep = clock.sleep

    async def run(self) -> None:
        while True:
            try:
                await self.reconcile()
                self.problem = None
            except KubeError as error:
                self.problem = f"the certificate cannot be maintained: {error}"
                log.warning(self.problem)
            await self.sleep(INTERVAL_SECONDS if self.problem is None else RETRY_SECONDS)

    def unusable(self) -> str | None:
        """Return why this replica should get no reviews, or None.

        None means that the API server trusts the served certificate. A certificate that can no
        longer be renewed stays usable until it expires.
        """
        if self.current is None:
            return self.problem or "the API server does not trust its certificate yet"
        if self._now() < self.current.begins:
            return self.problem or "its certificate is not valid yet"
        return (
            None
            if self._now() < self.current.expires
            else self.problem or "its certificate has expired"
        )

    async def reconcile(self) -> None:
        """Read or create the certificate, write its CA to the webhook configurations, then serve.

        Raises:
            KubeError: a request to the API server failed. Earlier steps are not undone.
        """
        agreed = await self._agreed_certificate()
        for kind in _KINDS:
            await self._publish(kind, agreed.authorities)
        if agreed != self.current:
            agreed.load_into(self.context)
            log.info("serving a certificate", extra={"expires": agreed.expires.isoformat()})
        self.current = agreed
        self.served.set()

    async def _agreed_certificate(self) -> ServingCertificate:
        version, stored = await self._read()
        if stored is not None:
            return stored
        # A deleted Secret is restored with the current certificate, because the other replicas
        # still serve it.
        made = self.current
        if made is None or not made.serves(self._names, self._now()):
            trusted = made.authorities if made is not None and made.expires > self._now() else b""
            made = await asyncio.to_thread(self_signed, self._names, self._now(), trusted)
        await self._write(version, made)
        log.info("a new certificate is stored in the Secret")
        return made

    async def _read(self) -> tuple[str, ServingCertificate | None]:
        """Return the resourceVersion of the Secret, and the certificate in it.

        The version is empty if there is no Secret. The certificate is None if it is not usable.
        """
        try:
            body = await self._connection.get(f"{self._secrets}/{self._secret}")
            secret = decode_json(body, _SECRET)
            data = {
                name: base64.b64decode(value, validate=True) for name, value in secret.data.items()
            }
        except NotFound:
            return "", None
        except (ConversionError, binascii.Error) as error:
            raise BadAnswer(f"this is not a Secret: {error}") from error
        version = secret.metadata.resource_version
        why = "it is not valid now, or not for the webhook's names"
        try:
            found = ServingCertificate(data["tls.crt"], data["tls.key"], data["ca.crt"])
            if found != self.current:
                found.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
                x509.load_pem_x509_certificates(found.authorities)
            if found.serves(self._names, self._now()):
                return version, found
        except (KeyError, ValueError, ssl.SSLError, x509.ExtensionNotFound) as error:
            why = f"{type(error).__name__}: {error}"
        if data:
            log.warning("the certificate in the Secret %s is replaced: %s", self._secret, why)
        return version, None

    async def _write(self, version: str, made: ServingCertificate) -> None:
        content = {"tls.crt": made.certificate, "tls.key": made.key, "ca.crt": made.authorities}
        data = {name: base64.b64encode(value).decode() for name, value in content.items()}
        meta: dict[str, Any] = {"name": self._secret}
        if not version:
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": meta,
                "data": data,
            }
            await self._connection.post(self._secrets, msgspec.json.encode(body))
            return
        meta["resourceVersion"] = version  # causes a conflict if another replica has written since
        await self._connection.patch(
            f"{self._secrets}/{self._secret}", msgspec.json.encode({"metadata": meta, "data": data})
        )

    async def _publish(self, kind: str, authorities: bytes) -> None:
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}/{self._configuration}"
        bundle = base64.b64encode(authorities).decode()
        try:
            found = decode_json(await self._connection.get(path), _WEBHOOKS)
        except ConversionError as error:
            raise BadAnswer(f"{path} cannot be read: {error}") from error
        stale = [
            webhook.name for webhook in found.webhooks if webhook.client_config.ca_bundle != bundle
        ]
        if not stale:
            return
        patch = {
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in stale],
        }
        await self._connection.patch(
            path, msgspec.json.encode(patch), content_type=STRATEGIC_MERGE_PATCH
        )
        log.info(
            "the CA bundle of webhooks is updated", extra={"kind": kind, "webhooks": len(stale)}
        )
