"""Replicas agree on certificates through one Secret, serve them without a restart, and say whom to trust."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gputile.controlplane.webhook.certificate_rotation import CertificateRotation
from gputile.controlplane.webhook.certificates import LIFETIME, OVERLAP, RENEW_BEFORE
from gputile.kube.client import Attempts, Connection
from gputile.kube.errors import BadAnswer, Forbidden, KubeError, NotFound
from gputile.kube.timing import Clock
from tests.fakes.apiserver import FakeApiServer
from tests.unit.kube.views import QUICK

SECRETS = "/api/v1/namespaces/gputile/secrets"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
NAME = "gputile-webhook.gputile.svc"
NO_CHECK_TIME = 0x200000  # OpenSSL, X509_V_FLAG_NO_CHECK_TIME: the scene has a clock of its own


class Scene:
    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def replica(self) -> CertificateRotation:
        return CertificateRotation(
            self.connection,
            namespace="gputile",
            secret="certificates",
            configuration="gputile",
            names=(NAME,),
            clock=Clock(now=lambda: self.time),
        )

    def register(self) -> None:
        for kind in KINDS:
            webhooks = [{"name": name, "clientConfig": {"service": {"name": "w"}}} for name in ("a", "b")]
            self.server.put(f"{REGISTRATION}/{kind}", {"metadata": {"name": "gputile"}, "webhooks": webhooks})

    @property
    def data(self) -> dict[str, bytes]:
        found = self.server.store[SECRETS]["certificates"]["data"]
        return {name: base64.b64decode(value) for name, value in found.items()}

    def bundles(self) -> list[bytes]:
        """What the API server trusts, webhook by webhook."""
        return [
            base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
            for kind in KINDS
            for webhook in self.server.store[f"{REGISTRATION}/{kind}"]["gputile"]["webhooks"]
        ]


@asynccontextmanager
async def on_stage() -> AsyncIterator[Scene]:
    server = FakeApiServer()
    async with server.running(), Connection(server.access(), attempts=Attempts(2, QUICK)) as connection:
        scene = Scene(server, connection)
        scene.register()
        yield scene


def shake_hands(context: ssl.SSLContext, bundle: bytes) -> bytes:
    """Return the certificate that a server with ``context`` shows to a client that trusts ``bundle``."""
    client = ssl.create_default_context(cadata=bundle.decode())
    client.verify_flags |= NO_CHECK_TIME
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(incoming, outgoing, server_hostname=NAME)
    there = context.wrap_bio(outgoing, incoming, server_side=True)
    for _ in range(4):
        for side in (here, there):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = here.getpeercert(binary_form=True)
    assert certificate
    return certificate


def served(rotation: CertificateRotation, scene: Scene) -> bytes:
    return shake_hands(rotation.context, scene.bundles()[0])


@pytest.mark.anyio
async def test_a_first_replica_makes_everything_and_a_second_takes_it_over() -> None:
    async with on_stage() as scene:
        first, second = scene.replica(), scene.replica()
        await first.once()
        await second.once()
        assert first.material == second.material
        assert set(scene.bundles()) == {scene.data["ca.crt"]}
        assert served(first, scene) == served(second, scene)
        written = scene.server.count("patch") + scene.server.count("post")
        await first.once()
        assert scene.server.count("patch") + scene.server.count("post") == written, "nothing is due"


@pytest.mark.anyio
async def test_replicas_that_start_together_agree() -> None:
    async with on_stage() as scene:
        replicas = [scene.replica() for _ in range(5)]
        await asyncio.gather(*(replica.once() for replica in replicas), return_exceptions=True)
        for replica in replicas:  # who lost the race for a configuration's caBundle comes back
            await replica.once()
        assert len({served(replica, scene) for replica in replicas}) == 1
        assert set(scene.bundles()) == {scene.data["ca.crt"]}


@pytest.mark.anyio
async def test_replicas_that_renew_together_agree() -> None:
    async with on_stage() as scene:
        replicas = [scene.replica() for _ in range(3)]
        for replica in replicas:
            await replica.once()
        scene.time += LIFETIME - RENEW_BEFORE + timedelta(minutes=1)
        await asyncio.gather(*(replica.once() for replica in replicas), return_exceptions=True)
        announced = {replica.material.following for replica in replicas if replica.material is not None}
        assert len(announced) == 1
        assert None not in announced


@pytest.mark.anyio
async def test_a_renewal_needs_no_restart_and_no_moment_without_trust() -> None:
    """The API server trusts what each replica serves, at every step, whichever replica is first."""

    async with on_stage() as scene:
        first, second = scene.replica(), scene.replica()
        await first.once()
        await second.once()
        before = served(first, scene)
        scene.time += LIFETIME - RENEW_BEFORE + timedelta(minutes=1)
        await second.once()
        assert served(first, scene) == served(second, scene) == before
        scene.time += OVERLAP
        await first.once()
        after = served(first, scene)
        assert after != before
        assert served(second, scene) == before, "it has not looked yet, and is trusted"
        await second.once()
        assert served(second, scene) == after


@pytest.mark.anyio
async def test_a_deleted_or_damaged_secret_comes_back_as_it_was() -> None:
    async with on_stage() as scene:
        rotation = scene.replica()
        await rotation.once()
        before, data = served(rotation, scene), scene.data
        scene.server.delete(SECRETS, "certificates")
        await rotation.once()
        assert scene.data == data
        assert served(rotation, scene) == before
        scene.server.put(SECRETS, {"metadata": {"name": "certificates"}, "data": {"tls.crt": "AAAA", "other": "AAAA"}})
        await rotation.once()
        assert served(rotation, scene) == before
        assert scene.data.items() >= data.items()


@pytest.mark.anyio
async def test_a_key_that_openssl_refuses_is_replaced() -> None:
    """Somebody else's certificate in the Secret ended every replica, again and again."""

    async with on_stage() as scene:
        key, name = rsa.generate_private_key(65537, 1024), x509.Name([])
        end = scene.time + LIFETIME
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1, scene.time, end)
        certificate = (
            builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .sign(key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        data = {"tls.crt": certificate, "tls.key": private, "ca.crt": certificate}
        encoded = {file: base64.b64encode(content).decode() for file, content in data.items()}
        scene.server.put(SECRETS, {"metadata": {"name": "certificates"}, "data": encoded})
        rotation = scene.replica()
        await rotation.once()
        assert served(rotation, scene)
        assert rotation.unusable() is None


@pytest.mark.anyio
async def test_a_certificate_that_is_not_valid_yet_serves_nobody() -> None:
    """Made while the clock was ahead; it is made anew in the next round."""

    async with on_stage() as scene:

        async def sleep(_: float) -> None:
            raise asyncio.CancelledError

        rotation = scene.replica()
        rotation.sleep = sleep
        scene.time += timedelta(hours=5)
        with pytest.raises(asyncio.CancelledError):
            await rotation.run()
        assert rotation.unusable() is None
        scene.time -= timedelta(hours=5)
        assert "not valid yet" in (rotation.unusable() or "")
        await rotation.once()
        assert rotation.material is not None
        assert rotation.material.current.begins <= scene.time
        assert served(rotation, scene)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "kind"), [(403, Forbidden), (404, NotFound)], ids=["no permission", "no configuration"]
)
async def test_what_keeps_it_from_being_trusted_is_said(status: int, kind: type[KubeError]) -> None:
    async with on_stage() as scene:
        rotation = scene.replica()
        await rotation.once()
        for each in KINDS:
            scene.server.delete(f"{REGISTRATION}/{each}", "gputile")
        if status == 403:
            scene.server.fault("get", "answer", status=403)
        with pytest.raises(kind):
            await rotation.once()


@pytest.mark.anyio
async def test_a_secret_that_is_no_secret_is_an_error_of_the_api_server() -> None:
    async with on_stage() as scene:
        scene.server.fault("get", "answer", status=200, body=b"<html>")
        with pytest.raises(BadAnswer, match="this is no Secret"):
            await scene.replica().once()


@pytest.mark.anyio
async def test_it_goes_on_after_any_failure_and_says_what_it_is() -> None:
    async with on_stage() as scene:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                raise asyncio.CancelledError

        rotation = scene.replica()
        rotation.sleep = sleep
        scene.server.fault("get", "answer", status=403)
        with pytest.raises(asyncio.CancelledError):
            await rotation.run()
        assert waits[0] < waits[1] == waits[2]
        assert rotation.problem is None
        assert rotation.served.is_set()


@pytest.mark.anyio
async def test_a_certificate_that_is_trusted_serves_to_its_end_whatever_happens_to_the_rights() -> None:
    """GPU pods are refused while no replica is ready, and all of them lose their rights at once."""

    async with on_stage() as scene:

        async def sleep(_: float) -> None:
            raise asyncio.CancelledError

        rotation = scene.replica()
        rotation.sleep = sleep
        assert rotation.unusable() == "there is no certificate yet"
        await rotation.once()
        for path in (f"{SECRETS}/certificates", SECRETS):
            scene.server.refused[path] = (403, "Forbidden")
        with pytest.raises(asyncio.CancelledError):
            await rotation.run()
        assert "Forbidden" in (rotation.problem or "")
        assert rotation.unusable() is None
        scene.time += LIFETIME
        assert "Forbidden" in (rotation.unusable() or "")


@pytest.mark.anyio
async def test_a_certificate_that_nobody_was_told_of_serves_nobody() -> None:
    async with on_stage() as scene:
        rotation = scene.replica()
        scene.server.refused[f"{REGISTRATION}/{KINDS[1]}/gputile"] = (403, "Forbidden")
        with pytest.raises(Forbidden):
            await rotation.once()
        assert rotation.served.is_set()
        assert rotation.unusable() is not None


@pytest.mark.anyio
async def test_lost_answers_and_conflicts_end_in_agreement() -> None:
    """An answer that gets lost after the write: the next look finds what was stored."""

    async with on_stage() as scene:
        rotation = scene.replica()
        scene.server.fault("post", "lose")
        with pytest.raises(KubeError):
            await rotation.once()
        await rotation.once()
        assert rotation.material is not None
        assert rotation.material.bundle == scene.data["ca.crt"]
