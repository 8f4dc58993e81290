"""Reads what namespaces demand of their pods: LimitRanges, quotas and Pod Security levels."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gputile.api.workloads import Namespace
from gputile.cli.options.common import Reach
from gputile.cli.reads.bounded_reads import read_or_leave, reads
from gputile.kube.errors import BadAnswer, Forbidden, NotFound
from gputile.kube.listing import Reading

if TYPE_CHECKING:
    from gputile.tools.simulator.documents.manifests import Manifest
    from gputile.tools.simulator.documents.notes import Note

_MOST_NAMESPACES: Final = 200
_THE_CLUSTER: Final = "the cluster"


@dataclass(frozen=True, slots=True)
class NamespaceRules:
    """The LimitRanges of namespaces, and what is to be said of rules there that are not judged."""

    limit_ranges: "Sequence[Manifest]" = ()
    notes: "Sequence[Note]" = ()


def read_rules(reach: Reach, manifests: "Iterable[Manifest]", labelled: Iterable[Namespace]) -> NamespaceRules:
    """Return the rules of the namespaces that ``manifests`` name; leave the program where the API server fails.

    ``labelled`` are the cluster's namespaces. Of a LimitRange that is among the manifests, too, theirs counts. Beyond
    200 namespaces, the rules of the others are not known.
    """
    from gputile.tools.simulator.cluster.workload_pods import place_of
    from gputile.tools.simulator.documents.notes import Note

    given = list(manifests)
    used = list(dict.fromkeys(place_of(each)[0] for each in given))
    names = used[:_MOST_NAMESPACES]

    async def read() -> "list[tuple[list[Manifest], list[str]]]":
        async with reads(reach) as connection:
            return await asyncio.gather(*(_rules_of(connection, name) for name in names))

    written = {place_of(each) for each in given if each.kind == "LimitRange"}
    found, notes = list["Manifest"](), list["Note"]()
    for ranges, texts in read_or_leave(read()) if names else ():
        found += (each for each in ranges if place_of(each) not in written)
        notes += map(Note, texts)
    if used[_MOST_NAMESPACES:]:
        notes.append(Note(f"the rules of {len(used) - _MOST_NAMESPACES:,} more namespaces are not read"))
    notes += (Note(text) for each in labelled if each.metadata.name in used and (text := _security(each)))
    return NamespaceRules(found, notes)


async def _rules_of(connection: Reading, namespace: str) -> "tuple[list[Manifest], list[str]]":
    """Return the LimitRanges of a namespace, and what is to be said of its quotas and of what may not be read.

    Raises:
        KubeError: the API server fails.
    """
    from gputile.tools.simulator.documents.manifests import Manifest, Origin

    said, prefix = [], f"/api/v1/namespaces/{quote(namespace, safe='')}"
    ranges, why = await _listed(connection, f"{prefix}/limitranges")
    if why:
        said.append(f"whether the LimitRanges of the namespace {namespace} allow its pods is not judged: {why}")
    quotas, why = await _listed(connection, f"{prefix}/resourcequotas")
    if quotas or why:
        named = ", ".join(sorted(map(_name, quotas)))
        said.append(
            f"whether the quota of the namespace {namespace} allows its pods is not judged: "
            f"{why or f'it has the ResourceQuota {named}, of which others use a part'}"
        )
    return [
        Manifest(Origin(_THE_CLUSTER, kind="LimitRange", name=_name(each)), "v1", "LimitRange", each) for each in ranges
    ], said


async def _listed(connection: Reading, path: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the objects at ``path``; and why they are not known, None where they are."""
    import msgspec

    try:
        found = msgspec.json.decode(await connection.get(path), type=dict[str, Any]).get("items") or []
    except NotFound:
        return [], None
    except Forbidden as error:
        return [], str(error)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"GET {path}: the answer is no list of an API server") from error
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BadAnswer(f"GET {path}: the answer is no list of an API server")
    return found, None


def _name(body: dict[str, Any]) -> str:
    metadata = body.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _security(namespace: Namespace) -> str | None:
    from gputile.tools.simulator.rules.objects.security_levels import enforced_level

    level = enforced_level(namespace.metadata.labels)
    name = namespace.metadata.name
    return f"the pods of the namespace {name} are not judged by its Pod Security level {level}" if level else None
