"""A certificate that is renewed in its file serves new connections; one that cannot be used changes nothing."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputile.controlplane.webhook.certificates import ServingCertificate, self_signed
from gputile.support.listening import TlsFiles, TlsReloader, UnusableTls, bind_port
from tests.unit.support.test_http_server import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def pairs() -> tuple[ServingCertificate, ServingCertificate]:
    first, second = (self_signed(("127.0.0.1",), datetime.now(UTC)) for _ in range(2))
    return first, second


@pytest.fixture
def files(tmp_path: Path, pairs: tuple[ServingCertificate, ServingCertificate]) -> TlsFiles:
    found = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    write(found, pairs[0])
    return found


def write(files: TlsFiles, pair: ServingCertificate) -> None:
    files.certificate.write_bytes(pair.certificate)
    files.key.write_bytes(pair.key)


async def shown(port: int) -> bytes:
    """Return the certificate that a new connection gets."""
    client = ssl.create_default_context()
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(certificate).encode()


async def test_a_renewed_certificate_is_served_without_a_restart(
    files: TlsFiles, pairs: tuple[ServingCertificate, ServingCertificate]
) -> None:
    """It expired while the extender ran, and kube-scheduler reached it no more."""
    first, second = pairs
    async with serving() as (server, _, port):
        reloader = TlsReloader(files, server.use_tls)
        assert await shown(port) == first.certificate
        files.certificate.write_bytes(second.certificate)  # its key is not there yet
        reloader.reload()
        assert await shown(port) == first.certificate
        files.key.write_bytes(second.key)
        reloader.reload()
        assert await shown(port) == second.certificate


@pytest.mark.parametrize(
    "damage",
    [
        lambda files: files.certificate.unlink(),
        lambda files: files.certificate.write_bytes(b""),
        lambda files: files.key.write_bytes(os.urandom(64)),
    ],
    ids=["removed", "empty", "noise"],
)
async def test_what_cannot_be_used_is_told_once_and_changes_nothing(
    files: TlsFiles,
    pairs: tuple[ServingCertificate, ServingCertificate],
    damage: Callable[[TlsFiles], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    contexts: list[ssl.SSLContext] = []
    reloader = TlsReloader(files, contexts.append)
    damage(files)
    reloader.reload()
    reloader.reload()
    assert len(contexts) == 1
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1
    write(files, pairs[1])
    reloader.reload()
    reloader.reload()
    assert len(contexts) == 2


async def test_files_that_cannot_be_used_from_the_start_are_an_error(files: TlsFiles) -> None:
    files.key.write_bytes(b"")
    with pytest.raises(UnusableTls, match=r"tls\.crt: cannot be served with .*tls\.key: .*PEM"):
        TlsReloader(files, lambda _: None)
    files.key.unlink()
    with pytest.raises(UnusableTls, match=r"tls\.key: No such file or directory"):
        TlsReloader(files, lambda _: None)


async def test_clients_need_a_certificate_of_the_authority(
    files: TlsFiles, pairs: tuple[ServingCertificate, ServingCertificate]
) -> None:
    assert files.context().verify_mode == ssl.CERT_NONE
    authority = files.certificate.with_name("ca.crt")
    authority.write_bytes(pairs[1].certificate)
    context = TlsFiles(files.certificate, files.key, authority).context()
    assert context.verify_mode == ssl.CERT_REQUIRED
    authority.write_bytes(b"none")
    with pytest.raises(UnusableTls, match=r"ca\.crt: not a CA certificate"):
        TlsFiles(files.certificate, files.key, authority).context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_every_address_is_of_both_families() -> None:
    """Pods of an IPv6 cluster have no IPv4 address, at which kubelet and API server could ask."""
    addresses = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() and Path("/proc/net/if_inet6").exists() else [])]
    with bind_port("--port", "", 0) as held:
        held.listen()
        for address in addresses:
            socket.create_connection((address, held.getsockname()[1]), timeout=60).close()
