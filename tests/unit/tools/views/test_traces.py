"""What programs outside of pods leave in a cluster."""

from typing import Any

import msgspec
import pytest

from gputile.api.other_groups import Lease
from gputile.api.workloads import WebhookConfiguration
from gputile.tools.views.status import Traces, traces_of

pytestmark = pytest.mark.requirement("U11")


def lease(name: str, holder: str | None) -> Lease:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"holderIdentity": holder}}, Lease)


def configuration(*webhooks: dict[str, Any]) -> WebhookConfiguration:
    return msgspec.convert({"metadata": {"name": "gputile"}, "webhooks": list(webhooks)}, WebhookConfiguration)


def webhook(namespace: str, name: str = "gpu-pods.gputile.io") -> dict[str, Any]:
    return {"name": name, "clientConfig": {"service": {"namespace": namespace, "name": "gputile-webhook"}}}


def test_leases_that_somebody_holds() -> None:
    """One that was released is of a program that has ended, and other Leases are of others."""
    leases = [lease("gputile-controller", "controller"), lease("gputile-extender", ""), lease("other", "x")]
    assert traces_of(leases, [], "gputile").here == ["controller holds the Lease gputile-controller"]
    assert traces_of([lease("gputile-extender", None)], [], "gputile") == Traces()


def test_a_webhook_that_the_api_server_asks() -> None:
    found = [configuration(webhook("gputile"), webhook("gputile")), configuration(webhook("gputile", "x.example.com"))]
    assert traces_of([], found, "gputile") == Traces(here=["the webhook configuration gputile is there"])
    assert traces_of([], found, "default") == Traces(elsewhere=["gputile"])


def test_a_webhook_by_an_address_is_here() -> None:
    by_address = {"name": "gpu-pods.gputile.io", "clientConfig": {"url": "https://127.0.0.1:1/mutate"}}
    assert traces_of([], [configuration(by_address)], "a") == Traces(
        here=["the webhook configuration gputile is there"]
    )
