"""``gputile webhook`` from its command line to the parts that it is made of."""

import asyncio
import os
import signal
import ssl
from pathlib import Path

import httpx2 as httpx
import pytest
from typer.testing import CliRunner

from gputile.api.config.v1alpha1 import Configuration
from gputile.cli.app import app
from gputile.controlplane.webhook.server import Webhook, WebhookSettings
from gputile.kube.client import Connection
from gputile.support.config_file import ConfigFile
from tests.fakes.apiserver import FakeApiServer, until
from tests.localcluster.machine import free_ports

REQUIRED = ["--installed-in", "gputile", "--service", "w", "--secret", "s", "--configuration", "gputile"]
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


def test_it_leaves_on_a_configuration_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "gputile.yaml"
    file.write_text("gpuMemoryUnit: 1MiB", encoding="utf-8")
    result = CliRunner().invoke(app, ["webhook", *REQUIRED, "--config", str(file)])
    assert result.exit_code == 2
    assert "the smallest valid unit is 64MiB" in result.output


@pytest.mark.anyio
async def test_it_serves_reviews_and_probes_and_ends_when_asked(tmp_path: Path) -> None:
    """The whole process on an API server over a socket: not ready before it is trusted, not ready while it ends."""

    port, health_port = free_ports(2)
    settings = WebhookSettings(
        "gputile", "w", "s", "gputile", "127.0.0.1", port, health_port, names=("127.0.0.1",), drain_seconds=4.0
    )
    server = FakeApiServer()
    async with (
        server.running(),
        Connection(server.access()) as connection,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        webhook = Webhook(connection, ConfigFile(None, Configuration()), settings)
        webhook.certificates.sleep = lambda _: asyncio.sleep(0.01)
        running = asyncio.create_task(webhook.run(settings))
        health = f"http://127.0.0.1:{health_port}"
        await until(lambda: "NotFound" in (webhook.not_ready() or ""))
        answer = await client.get(f"{health}/readyz")
        assert answer.status_code == 503
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            entry = {"name": "a", "clientConfig": {}}
            server.put(f"{REGISTRATION}/{kind}", {"metadata": {"name": "gputile"}, "webhooks": [entry]})
        await until(lambda: not webhook.not_ready())
        assert (await client.get(f"{health}/readyz")).status_code == 200
        assert webhook.certificates.current is not None
        trust = ssl.create_default_context(cadata=webhook.certificates.current.authorities.decode())
        api_server = httpx.AsyncClient(verify=trust, trust_env=False)
        answered = await api_server.post(f"https://127.0.0.1:{port}/mutate", content=b"{}")
        assert (answered.status_code, answered.headers.get("connection")) == (400, None)
        metrics = (await client.get(f"{health}/metrics")).text
        assert "gputile_webhook_ready 1.0" in metrics
        assert "gputile_webhook_memory_unit_mib 1024.0" in metrics
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: webhook.draining)
        assert (await client.get(f"{health}/readyz")).status_code == 503
        # The API server sends the next review elsewhere, rather than on a connection that is about to be closed.
        answered = await api_server.post(f"https://127.0.0.1:{port}/mutate", content=b"{}")
        assert (answered.status_code, answered.headers.get("connection")) == (400, "close")
        await api_server.aclose()
        async with asyncio.timeout(60):
            await running
