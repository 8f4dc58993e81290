"""Reads what a live cluster has that manifests need to be stored at all."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from gputile.api.conversion import ConversionError, decode
from gputile.api.workloads import Namespace, ServedKinds
from gputile.cli.options.common import Reach
from gputile.cli.reads.bounded_reads import read_or_leave, reads
from gputile.kube.errors import BadAnswer, Forbidden, NotFound
from gputile.kube.objects import Reading

if TYPE_CHECKING:
    from gputile.tools.simulator.documents.manifests import Manifest
    from gputile.tools.simulator.updates.cluster_offer import ClusterOffer

_MOST_VERSIONS = 200


def read_offer(reach: Reach, manifests: "Iterable[Manifest]", namespaces: Iterable[Namespace] | None) -> "ClusterOffer":
    """Return which kinds the cluster serves of the versions that ``manifests`` name, beside its ``namespaces``.

    Versions that may not be asked for are not known, nor are those beyond the first 200. Leaves the program where the
    API server fails.
    """
    from gputile.tools.simulator.updates.cluster_offer import ClusterOffer, Namespaces, asked_versions

    versions = asked_versions(manifests)[:_MOST_VERSIONS]

    async def read() -> dict[str, Mapping[str, bool]]:
        async with reads(reach) as connection:
            answers = await asyncio.gather(*(_served(connection, version) for version in versions))
        return {version: kinds for version, kinds in zip(versions, answers, strict=True) if kinds is not None}

    deleted = {each.metadata.name: each.metadata.deletion_timestamp is not None for each in namespaces or ()}
    return ClusterOffer(
        read_or_leave(read()) if versions else {}, Namespaces(deleted) if namespaces is not None else None
    )


async def _served(connection: Reading, version: str) -> Mapping[str, bool] | None:
    """Return the kinds of a version, and whether their objects have a namespace; None where that may not be read.

    Raises:
        KubeError: the API server fails.
    """
    import msgspec

    path = "/".join(("/apis" if "/" in version else "/api", *(quote(part, safe="") for part in version.split("/"))))
    try:
        found = decode(await connection.get(path), msgspec.json.Decoder(ServedKinds))
    except NotFound:
        return None if version == "v1" else {}  # every API server has v1: what answers tells nothing of kinds
    except Forbidden:
        return None
    except ConversionError as error:
        raise BadAnswer(f"GET {path}: the answer is no list of kinds ({error})") from error
    return {each.kind: each.namespaced for each in found.resources if "/" not in each.name}
