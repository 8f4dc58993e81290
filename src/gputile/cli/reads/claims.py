"""Reads whether the claims of a live cluster are of blocks or of files."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from gputile.api.workloads import ListedClaim
from gputile.cli.options.common import Reach
from gputile.cli.reads.bounded_reads import listed, read_or_leave, reads
from gputile.cli.reads.named_fields import names_field
from gputile.kube.objects import Reading

if TYPE_CHECKING:
    from gputile.tools.simulator.documents.manifests import Manifest
    from gputile.tools.simulator.documents.notes import Note

_MOST_NAMESPACES: Final = 200
_NAMING: Final = frozenset({"claimName", "volumeClaimTemplates"})


def read_block_claims(
    reach: Reach, manifests: "Iterable[Manifest]"
) -> "tuple[Mapping[tuple[str, str], bool], list[Note]]":
    """Return which claims of the cluster are of blocks, by namespace and name, and what is to be said of others.

    Read are the claims of namespaces in which one of ``manifests`` names a claim, or makes claims that may be there
    already. Leaves the program where the API server fails.
    """
    from gputile.tools.simulator.documents.notes import Note

    naming = (each.namespaced_name[0] for each in manifests if not each.described and names_field(each.body, _NAMING))
    names = list(dict.fromkeys(naming))[:_MOST_NAMESPACES]
    found: dict[tuple[str, str], bool] = {}
    notes: list[Note] = []

    async def one(connection: Reading, namespace: str) -> None:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/persistentvolumeclaims"
        claims, why = await listed(connection, path, ListedClaim)
        if why is not None:
            said = f"whether the claims of the namespace {namespace} are of blocks or of files is not judged: {why}"
            notes.append(Note(said))
        found.update({(namespace, each.metadata.name): each.spec.volume_mode == "Block" for each in claims or ()})

    async def read() -> None:
        async with reads(reach) as connection:
            await asyncio.gather(*(one(connection, name) for name in names))

    if names:
        read_or_leave(read())
    return found, notes
