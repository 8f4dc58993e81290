"""Reads what namespaces demand of pods: LimitRanges, quotas, autoscalers, Pod Security levels."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gputile.api.workloads import Namespace
from gputile.cli.options.common import Reach
from gputile.cli.reads.bounded_reads import read_or_leave, reads
from gputile.kube.errors import BadAnswer, Forbidden, NotFound
from gputile.kube.objects import Reading

if TYPE_CHECKING:
    from gputile.tools.simulator.documents.manifests import Manifest
    from gputile.tools.simulator.documents.notes import Note

_MOST_NAMESPACES: Final = 200
_THE_CLUSTER: Final = "the cluster"
_AUTOSCALER: Final = ("autoscaling/v2", "HorizontalPodAutoscaler")


@dataclass(frozen=True, slots=True)
class NamespaceRules:
    """The LimitRanges and HorizontalPodAutoscalers of namespaces, and what is to be said of rules not judged."""

    limit_ranges: "Sequence[Manifest]" = ()
    autoscalers: "Sequence[Manifest]" = ()
    notes: "Sequence[Note]" = ()


def read_rules(reach: Reach, manifests: "Iterable[Manifest]", labelled: Iterable[Namespace]) -> NamespaceRules:
    """Return the rules of the namespaces that ``manifests`` name; leave the program where the API server fails.

    ``labelled`` are the cluster's namespaces. Of a LimitRange or autoscaler that is among the manifests, too, theirs
    counts. Beyond 200 namespaces, the rules of the others are not known.
    """
    from gputile.tools.simulator.cluster.autoscaled import SCALABLE
    from gputile.tools.simulator.documents.notes import Note

    given = list(manifests)
    used = list(dict.fromkeys(each.namespaced_name[0] for each in given))
    names = used[:_MOST_NAMESPACES]
    scaled = {each.namespaced_name[0] for each in given if each.kind in SCALABLE}

    async def read() -> list[_NamedNamespace]:
        async with reads(reach) as connection:
            return await asyncio.gather(*(_rules_of(connection, name, name in scaled) for name in names))

    written = {(each.kind, *each.namespaced_name) for each in given}
    found, notes = list["Manifest"](), list["Note"]()
    for each in read_or_leave(read()) if names else ():
        found += (rule for rule in each.rules if (rule.kind, *rule.namespaced_name) not in written)
        notes += map(Note, each.said)
    if used[_MOST_NAMESPACES:]:
        notes.append(Note(f"the rules of {len(used) - _MOST_NAMESPACES:,} more namespaces are not read"))
    notes += (Note(text) for each in labelled if each.metadata.name in used and (text := _security(each)))
    autoscalers = [each for each in found if each.kind == _AUTOSCALER[1]]
    return NamespaceRules([each for each in found if each.kind != _AUTOSCALER[1]], autoscalers, notes)


@dataclass(frozen=True, slots=True)
class _NamedNamespace:
    """What a namespace has: its rules, and sentences on those that are not judged."""

    rules: "Sequence[Manifest]"
    said: Sequence[str]


async def _rules_of(connection: Reading, namespace: str, scaled: bool) -> _NamedNamespace:
    """Return the LimitRanges of a namespace, with its autoscalers if pods of it can be ``scaled``.

    Raises:
        KubeError: the API server fails.
    """
    from gputile.tools.simulator.admission.limit_ranges import unusable

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
    rules = [_manifest("v1", "LimitRange", each) for each in ranges]
    for rule in rules:
        if why := unusable(rule.body):
            said.append(f"the LimitRange {rule.origin.name} of the namespace {namespace} is not applied: {why}")
    if scaled:
        version, kind = _AUTOSCALER
        path = f"/apis/{version}/namespaces/{quote(namespace, safe='')}/{kind.lower()}s"
        autoscalers, why = await _listed(connection, path)
        rules += [_manifest(version, kind, each) for each in autoscalers]
        if why:
            said.append(f"how many pods autoscalers keep in the namespace {namespace} is not known: {why}")
    return _NamedNamespace(rules, said)


def _manifest(version: str, kind: str, body: dict[str, Any]) -> "Manifest":
    from gputile.tools.simulator.documents.manifests import Manifest, Origin

    return Manifest(Origin(_THE_CLUSTER, kind=kind, name=_name(body)), version, kind, body)


async def _listed(connection: Reading, path: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the objects at ``path``; and why they are not known, None where they are."""
    import msgspec

    from gputile.tools.simulator.updates.stored_objects import without_nulls

    try:
        found = msgspec.json.decode(await connection.get(path), type=dict[str, Any]).get("items") or []
    except NotFound:
        return [], None
    except Forbidden as error:
        return [], str(error)
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"GET {path}: the answer is no list of an API server") from error
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BadAnswer(f"GET {path}: the answer is no list of an API server")
    return [without_nulls(each) for each in found], None


def _name(body: dict[str, Any]) -> str:
    metadata = body.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _security(namespace: Namespace) -> str | None:
    from gputile.tools.simulator.rules.objects.security_levels import enforced_level

    level = enforced_level(namespace.metadata.labels)
    name = namespace.metadata.name
    return f"the pods of the namespace {name} are not judged by its Pod Security level {level}" if level else None
