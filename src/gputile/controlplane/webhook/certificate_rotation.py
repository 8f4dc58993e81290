"""Keeps Secret, TLS settings and webhook configurations in step on every replica.

Replicas agree by the Secret's resourceVersion: the loser of a race reads what the winner has stored.
"""

import asyncio
import base64
import binascii
import logging
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gputile.api.conversion import ConversionError
from gputile.api.conversion import decode as decode_json
from gputile.controlplane.webhook.certificates import Material, MaterialError, Pair, decode, encode, next_material
from gputile.kube.client import STRATEGIC_MERGE_PATCH, Connection
from gputile.kube.errors import BadAnswer, Conflict, KubeError, NotFound
from gputile.kube.timing import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 30.0  # well below certificates.OVERLAP: all replicas see a change long before it serves
RETRY_SECONDS = 2.0
_ATTEMPTS = 4
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


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


class CertificateRotation:
    """Looks after the certificates of one webhook.

    ``names`` are the DNS names and addresses that the API server may reach it by. ``secret`` in ``namespace`` keeps
    the certificates; both webhook configurations are called ``configuration``.
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
        self.material: Material | None = None
        self._trusted: Pair | None = None  # what the API server has been told to trust
        self.served = asyncio.Event()  # a certificate is loaded
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
                await self.once()
                self.problem = None
            except KubeError as error:
                self.problem = f"the certificates cannot be looked after: {error}"
                log.warning(self.problem)
            await self.sleep(INTERVAL_SECONDS if self.problem is None else RETRY_SECONDS)

    def unusable(self) -> str | None:
        """Return why no review should be sent here, None where the API server trusts what is served.

        A certificate that cannot be renewed any more stays good until it expires.
        """
        material = self.material
        if material is None or material.current != self._trusted:
            return self.problem or "the API server does not trust its certificate yet"
        now = self._now()
        if now < material.current.begins:
            return self.problem or "its certificate is not valid yet"
        return None if now < material.expires else self.problem or "its certificate has expired"

    async def once(self) -> None:
        """Read the Secret, renew what is due, serve it, and tell the API server whom to trust.

        Raises:
            KubeError: the API server could not be asked or told. Earlier steps are not undone.
        """
        material = await self._agree()
        if self.material is None or material.current != self.material.current:
            load(self.context, material.current)
            log.info("serving a certificate", extra={"expires": material.expires.isoformat()})
        self.material = material
        self.served.set()
        for kind in _KINDS:
            await self._publish(kind, material)
        self._trusted = material.current

    async def _agree(self) -> Material:
        for _ in range(_ATTEMPTS):
            version, stored = await self._read()
            # a Secret that was deleted or damaged is written again as it was: the other replicas still serve from it
            before = stored or self.material
            wanted = await asyncio.to_thread(next_material, before, self._names, self._now())
            if wanted == stored:
                return wanted
            try:
                await self._write(version, wanted)
            except Conflict:
                continue
            log.info("certificates stored", extra={"announced": wanted.following is not None})
            return wanted
        raise BadAnswer(f"the Secret {self._secret} changes faster than it can be written")

    async def _read(self) -> tuple[str, Material | None]:
        """Return the Secret's version, "" where there is none, and what can be used of it."""
        try:
            body = await self._connection.get(f"{self._secrets}/{self._secret}")
            secret = decode_json(body, _SECRET)
            data = {name: base64.b64decode(value, validate=True) for name, value in secret.data.items()}
        except NotFound:
            return "", None
        except (ConversionError, binascii.Error) as error:
            raise BadAnswer(f"this is no Secret: {error}") from error
        try:
            material = decode(data)
            if material != self.material:
                _try_to_serve(material)
            return secret.metadata.resource_version, material
        except (MaterialError, ssl.SSLError) as error:
            if data:
                log.warning("the Secret %s is replaced: %s", self._secret, error)
            return secret.metadata.resource_version, None

    async def _write(self, version: str, material: Material) -> None:
        data = {name: base64.b64encode(value).decode() for name, value in encode(material).items()}
        meta: dict[str, Any] = {"name": self._secret}
        if not version:
            body = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": meta, "data": data}
            await self._connection.post(self._secrets, msgspec.json.encode(body))
            return
        meta["resourceVersion"] = version  # a conflict if another replica has written since
        await self._connection.patch(
            f"{self._secrets}/{self._secret}", msgspec.json.encode({"metadata": meta, "data": data})
        )

    async def _publish(self, kind: str, material: Material) -> None:
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}/{self._configuration}"
        bundle = base64.b64encode(material.bundle).decode()
        try:
            found = decode_json(await self._connection.get(path), _WEBHOOKS)
        except ConversionError as error:
            raise BadAnswer(f"{path} cannot be read: {error}") from error
        stale = [webhook.name for webhook in found.webhooks if webhook.client_config.ca_bundle != bundle]
        if not stale:
            return
        patch = {
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in stale],
        }
        await self._connection.patch(path, msgspec.json.encode(patch), content_type=STRATEGIC_MERGE_PATCH)
        log.info("the API server is told whom to trust", extra={"kind": kind, "webhooks": len(stale)})


def _try_to_serve(material: Material) -> None:
    """Load what is to be served now and next where nobody is served from.

    Raises:
        ssl.SSLError: OpenSSL refuses one of them, as it does weak keys.
    """
    for pair in (material.current, material.following):
        if pair is not None:
            load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Serve new connections with this certificate; ssl reads one from files only."""
    with tempfile.TemporaryDirectory() as directory:
        files = Path(directory, "tls.crt"), Path(directory, "tls.key")
        for file, content in zip(files, (pair.certificate, pair.key), strict=True):
            file.touch(mode=0o600)
            file.write_bytes(content)
        context.load_cert_chain(*files)
