"""Reads which addresses and node ports the Services of a live cluster have."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from gputile.api.workloads import ListedService
from gputile.cli.options.common import Reach
from gputile.cli.reads.bounded_reads import listed, read_or_leave, reads

if TYPE_CHECKING:
    from gputile.tools.simulator.documents.manifests import Manifest
    from gputile.tools.simulator.documents.notes import Note

_SERVICES: Final = "/api/v1/services"


def read_services(reach: Reach, manifests: "Iterable[Manifest]") -> "tuple[Sequence[ListedService], list[Note]]":
    """Return the cluster's Services, and what is to be said where they may not be listed.

    They are read only if one of ``manifests`` wants a certain address or node port. Leaves the program where the API
    server fails.
    """
    from gputile.tools.simulator.admission.service_allocations import names_an_allocation
    from gputile.tools.simulator.documents.notes import Note

    async def read() -> tuple[list[ListedService] | None, str | None]:
        async with reads(reach) as connection:
            return await listed(connection, _SERVICES, ListedService)

    found, why = read_or_leave(read()) if any(map(names_an_allocation, manifests)) else (None, None)
    said = f"whether other Services have the addresses and node ports is not judged: {why}"
    return found or (), [Note(said)] if why is not None else []
