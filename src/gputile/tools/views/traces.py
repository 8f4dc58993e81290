"""Finds what programs of gputile that run outside of pods leave in a cluster (U11).

Nothing of it says whether a program is ready: the extender renews its Lease only while it is asked, and a webhook
configuration stays when its webhook ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gputile.api.other_groups import Lease
from gputile.api.well_known import CONTROLLER_LEASE, EXTENDER_LEASE
from gputile.api.workloads import WebhookConfiguration, WebhookEntry

_OUR_WEBHOOKS: Final = ".gputile.io"


@dataclass(frozen=True, slots=True)
class Traces:
    """``here`` are sentences on what programs left that work with a namespace, ``elsewhere`` the webhook's others."""

    here: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


def traces_of(leases: Iterable[Lease], configurations: Iterable[WebhookConfiguration], namespace: str) -> Traces:
    """Return what the Leases of a namespace and the cluster's webhook configurations tell of gputile."""
    found = Traces()
    for lease in leases:
        holder = lease.spec.holder_identity
        if holder and lease.metadata.name in (CONTROLLER_LEASE, EXTENDER_LEASE):
            found.here.append(f"{holder} holds the Lease {lease.metadata.name}")
    for configuration in configurations:
        places = {_namespace(each) for each in configuration.webhooks if each.name.endswith(_OUR_WEBHOOKS)}
        if places & {"", namespace}:
            found.here.append(f"the webhook configuration {configuration.metadata.name} is there")
        found.elsewhere.extend(sorted(places - {"", namespace, *found.elsewhere}))
    return found


def _namespace(webhook: WebhookEntry) -> str:
    """Return the namespace of a webhook's Service, "" where it is asked by an address."""
    service = webhook.client_config.service
    return service.namespace if service is not None else ""
