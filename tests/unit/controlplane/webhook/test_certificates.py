"""Replicas agree on a certificate through one Secret, serve what is in it, and say whom to trust."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from gputile.controlplane.webhook.certificates import (
    LIFETIME,
    RENEW_BEFORE,
    CertificateKeeper,
    ServingCertificate,
    self_signed,
)
from gputile.kube.client import Clock, Connection
from gputile.kube.errors import BadAnswer, Forbidden, KubeError
from tests.fakes.apiserver import FakeApiServer

SECRETS = "/api/v1/namespaces/gputile/secrets"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
NAME = "gputile-webhook.gputile.svc"
START = datetime(2026, 1, 1, tzinfo=UTC)
NO_CHECK_TIME = 0x200000  # OpenSSL, X509_V_FLAG_NO_CHECK_TIME: the scene has a clock of its own


class Scene:
    def __init__(self, server: FakeApiServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.time = START

    def replica(self) -> CertificateKeeper:
        return CertificateKeeper(
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

    def store(self, data: dict[str, bytes]) -> None:
        encoded = {file: base64.b64encode(content).decode() for file, content in data.items()}
        self.server.put(SECRETS, {"metadata": {"name": "certificates"}, "data": encoded})

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

    def served(self, keeper: CertificateKeeper) -> bytes:
        """Return the certificate that a replica shows to the API server, which trusts it."""
        (bundle,) = set(self.bundles())
        client = ssl.create_default_context(cadata=bundle.decode())
        client.verify_flags |= NO_CHECK_TIME
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        here = client.wrap_bio(incoming, outgoing, server_hostname=NAME)
        there = keeper.context.wrap_bio(outgoing, incoming, server_side=True)
        for _ in range(4):
            for side in (here, there):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        certificate = here.getpeercert(binary_form=True)
        assert certificate
        return certificate


@asynccontextmanager
async def on_stage() -> AsyncIterator[Scene]:
    server = FakeApiServer()
    async with server.connected() as connection:
        scene = Scene(server, connection)
        scene.register()
        yield scene


def contents(certificate: ServingCertificate) -> dict[str, bytes]:
    return {"tls.crt": certificate.certificate, "tls.key": certificate.key, "ca.crt": certificate.authorities}


@pytest.mark.anyio
async def test_replicas_that_start_together_agree() -> None:
    async with on_stage() as scene:
        replicas = [scene.replica() for _ in range(5)]
        await asyncio.gather(*(replica.reconcile() for replica in replicas), return_exceptions=True)
        for replica in replicas:  # one that lost the race for a configuration's caBundle comes back
            await replica.reconcile()
        assert len({scene.served(replica) for replica in replicas}) == 1
        written = scene.server.count("patch") + scene.server.count("post")
        await replicas[0].reconcile()
        assert scene.server.count("patch") + scene.server.count("post") == written, "nothing is due"


@pytest.mark.anyio
async def test_what_somebody_else_stores_is_served_without_a_restart() -> None:
    async with on_stage() as scene:
        keeper = scene.replica()
        await keeper.reconcile()
        before, renewed = scene.served(keeper), self_signed((NAME, "other"), START)
        scene.store(contents(renewed))
        await keeper.reconcile()
        assert scene.served(keeper) != before
        assert keeper.current == renewed
        assert scene.data == contents(renewed)


@pytest.mark.anyio
async def test_one_that_ends_is_replaced_and_trusted_on_replicas_that_still_serve_it() -> None:
    async with on_stage() as scene:
        first, second = scene.replica(), scene.replica()
        await first.reconcile()
        await second.reconcile()
        before = scene.served(first)
        scene.time += LIFETIME - RENEW_BEFORE + timedelta(minutes=1)
        await first.reconcile()
        assert scene.served(first) != scene.served(second) == before
        await second.reconcile()
        assert scene.served(second) == scene.served(first)


@pytest.mark.anyio
async def test_a_deleted_secret_comes_back_as_it_was() -> None:
    async with on_stage() as scene:
        keeper = scene.replica()
        await keeper.reconcile()
        before, data = scene.served(keeper), scene.data
        scene.server.delete(SECRETS, "certificates")
        await keeper.reconcile()
        assert (scene.data, scene.served(keeper)) == (data, before)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "data",
    [
        {"tls.crt": b"x", "tls.key": b"x", "ca.crt": b"x"},
        contents(self_signed((NAME,), START)) | {"tls.key": self_signed((NAME,), START).key},
        contents(self_signed((NAME,), START)) | {"ca.crt": b""},
        contents(self_signed(("other.gputile.svc",), START)),
        contents(self_signed((NAME,), START + timedelta(hours=5))),
        contents(self_signed((NAME,), START - LIFETIME)),
    ],
    ids=["no certificate", "another key", "no authority", "another name", "not valid yet", "ends"],
)
async def test_what_cannot_serve_is_replaced(data: dict[str, bytes]) -> None:
    async with on_stage() as scene:
        scene.store(data)
        keeper = scene.replica()
        await keeper.reconcile()
        assert scene.served(keeper)
        assert keeper.unusable() is None


@pytest.mark.anyio
async def test_a_certificate_that_nobody_was_told_of_serves_nobody() -> None:
    async with on_stage() as scene:
        keeper = scene.replica()
        scene.server.refused[f"{REGISTRATION}/{KINDS[1]}/gputile"] = (403, "Forbidden")
        with pytest.raises(Forbidden):
            await keeper.reconcile()
        assert not keeper.served.is_set()
        assert keeper.unusable() is not None


@pytest.mark.anyio
async def test_it_goes_on_after_any_failure_and_says_what_it_is() -> None:
    async with on_stage() as scene:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                raise asyncio.CancelledError

        keeper = scene.replica()
        keeper.sleep = sleep
        scene.server.fault("get", "answer", status=403)
        with pytest.raises(asyncio.CancelledError):
            await keeper.run()
        assert waits[0] < waits[1] == waits[2]
        assert keeper.problem is None
        scene.server.fault("get", "answer", status=200, body=b"<html>")
        with pytest.raises(BadAnswer, match="this is not a Secret"):
            await keeper.reconcile()


@pytest.mark.anyio
async def test_a_certificate_that_is_trusted_serves_to_its_end_whatever_happens_to_the_rights() -> None:
    """GPU pods are refused while no replica is ready, and all of them lose their rights at once."""
    async with on_stage() as scene:
        keeper = scene.replica()
        assert keeper.unusable() == "there is no certificate yet"
        await keeper.reconcile()
        for path in (f"{SECRETS}/certificates", SECRETS):
            scene.server.refused[path] = (403, "Forbidden")
        with pytest.raises(Forbidden):
            await keeper.reconcile()
        assert keeper.unusable() is None
        scene.time += LIFETIME
        assert keeper.unusable() is not None


@pytest.mark.anyio
async def test_a_lost_answer_ends_in_agreement() -> None:
    """An answer that gets lost after the write: the next look finds what was stored."""
    async with on_stage() as scene:
        keeper = scene.replica()
        scene.server.fault("post", "lose")
        with pytest.raises(KubeError):
            await keeper.reconcile()
        await keeper.reconcile()
        assert keeper.current is not None
        assert contents(keeper.current) == scene.data
