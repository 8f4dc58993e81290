"""Validates manifests by dry runs on the API server, with the user's own rights.

Like ``kubectl apply``, this module first reads each object. A missing object is sent as a create
request, and an existing object as a server-side apply. All requests have ``dryRun=All``, so the API
server validates and admits the object but does not store it. A further request is made for a pod of
each pod template, because admission would otherwise see this pod only when its controller creates
it.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from gputile.api.conversion import ConversionError, decode
from gputile.api.wording import shown
from gputile.api.workloads import ServedKind, ServedKinds
from gputile.cli.options import ApiOptions
from gputile.cli.reads.live_cluster import connected, read_or_exit
from gputile.cli.terminal import SAY_AFTER_PIPED_S, Progress
from gputile.kube.errors import (
    ApiError,
    BadAnswer,
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from gputile.tools.simulator.controllers import MAKERS, template_path
from gputile.tools.simulator.fields import Json
from gputile.tools.simulator.manifests import Manifest, Note, Origin
from gputile.tools.simulator.pod_shapes import pods_by_shape
from gputile.tools.simulator.shape_search import value_at

if TYPE_CHECKING:
    from gputile.kube.client import Connection
    from gputile.tools.simulator.pod_kinds import PodKinds

_AT_A_TIME: Final = 16
_APPLY: Final = "application/apply-patch+yaml"
_MANAGER: Final = "kubectl"  # the field manager of kubectl apply --server-side
_CLAIMS: Final = "volumeClaimTemplates"
_CLAIM_NAME: Final = ("metadata", "name")
_UNKNOWN_FIELD: Final = re.compile(r'(unknown|duplicate) field "([^"]*)"')
_PREAMBLE: Final = re.compile(r'^\S+ "[^"]*" is (?:forbidden|invalid): ')
# Only refusals by RBAC contain this wording: User "ci" cannot create resource "pods" in API
# group "" ...
_NO_RIGHT: Final = re.compile(r'User "[^"]*" cannot \w+ (?:resource|path) "')
# The limit in characters. The message about an immutable field contains its whole value.
_LONGEST_CAUSE: Final = 300
_NEEDED: Final = ("Namespace", "PriorityClass", "RuntimeClass", "ServiceAccount")
_NOT_FOUND: Final = re.compile(r"not found|was found")


@dataclass(frozen=True, slots=True)
class DryRun:
    """The object of a dry run: the manifest itself, or a pod of the pod template at ``path``."""

    manifest: Manifest
    api_version: str
    kind: str
    body: dict[str, Any]
    path: str = ""

    @property
    def namespace(self) -> str:
        return self.manifest.namespaced_name[0]

    @property
    def name(self) -> str:
        """The object's name, or "" if the API server generates the name."""
        return "" if self.path else self.manifest.namespaced_name[1]


def dry_runs(manifests: Iterable[Manifest], kinds: "PodKinds") -> Iterator[DryRun]:
    """Yield the dry runs. Skip manifests that describe the cluster, and pods that already run."""
    for manifest in manifests:
        if manifest.described or manifest.is_bound_pod:
            continue
        body, metadata = manifest.body, manifest.body.get("metadata")
        if isinstance(metadata, dict) and "managedFields" in metadata:  # clients must not send it
            body = {
                **body,
                "metadata": {key: metadata[key] for key in metadata if key != "managedFields"},
            }
        yield DryRun(manifest, manifest.api_version, manifest.kind, body)
        for path, template in _templates(manifest, kinds):
            yield DryRun(manifest, "v1", "Pod", _pod(manifest, template), path)


def _templates(manifest: Manifest, kinds: "PodKinds") -> Iterator[tuple[str, Json]]:
    """Yield the path and the value of each pod template in a manifest of a known kind."""
    found = kinds.find(manifest)
    if manifest.api_version == MAKERS.get(manifest.kind) and manifest.kind != "Pod":
        steps = template_path(manifest.kind)
        template = value_at(manifest.body, steps)
        if isinstance(template, dict) and isinstance(template.get("spec"), dict):
            yield ".".join(steps), {**template, **_claims(value_at(manifest.body, steps[:-1]))}
    elif found is not None:
        for group in {
            group.steps: group for group in pods_by_shape(manifest, found).groups if group.rule
        }.values():
            yield (
                group.path,
                {**group.template, **_claims(value_at(manifest.body, group.steps[:-1]))},
            )


def _claims(parent: Any) -> Json:
    """Return the ``volumeClaimTemplates`` in ``parent``, which contains the pod template."""
    found = parent.get(_CLAIMS) if isinstance(parent, dict) else None
    return {_CLAIMS: found} if isinstance(found, list) else {}


def _pod(manifest: Manifest, template: Json) -> dict[str, Any]:
    """Build the pod of a template as a controller does, with a volume per claim template."""
    metadata, spec = template.get("metadata"), template["spec"]
    given = metadata if isinstance(metadata, dict) else {}
    copied = {key: given[key] for key in ("labels", "annotations") if key in given}
    claims = [
        name
        for each in template.get(_CLAIMS, ())
        if isinstance(name := value_at(each, _CLAIM_NAME), str)
    ]
    volumes = spec.get("volumes")
    if claims and isinstance(volumes, list | None):
        others = [
            each
            for each in volumes or ()
            if not isinstance(each, dict) or each.get("name") not in claims
        ]
        added = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
        spec = {**spec, "volumes": [*others, *added]}
    prefix = f"{manifest.namespaced_name[1] or manifest.kind.lower()}-"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**copied, "generateName": prefix},
        "spec": spec,
    }


def is_denied_by_rbac(message: str) -> bool:
    """Return whether RBAC refused the request. In this case the object may still be valid."""
    return _NO_RIGHT.search(message) is not None


def is_object_in_files(message: str, names: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the refusal is due to a missing object whose name is in ``names``."""
    found = (name for kind in _NEEDED for name in names.get(kind, ()))
    return _NOT_FOUND.search(message) is not None and any(
        re.search(rf"\b{re.escape(name)}\b", message) for name in found
    )


def refusal_lines(dry_run: DryRun, message: str, details: Any) -> list[str]:
    """Return a line for each cause of a refusal. ``details`` comes from the API server's Status."""
    before = f"{dry_run.path}." if dry_run.path else ""
    origin = dry_run.manifest.origin
    causes = details.get("causes") if isinstance(details, dict) else None
    found = [each for each in causes or () if isinstance(each, dict) and each.get("message")]
    named = [each for each in found if each.get("field")]
    if found and len(named) == len(found):
        return [
            str(origin.error(f"{before}{each['field']}", _shortened(str(each["message"]))))
            for each in named
        ]
    if unknown := _UNKNOWN_FIELD.findall(message):
        return [str(origin.error(f"{before}{field}", f"{what} field")) for what, field in unknown]
    return [str(origin.error(dry_run.path, _PREAMBLE.sub("", message)))]


def _shortened(message: str) -> str:
    """Shorten a long error message by cutting most of the value that the message quotes."""
    if len(message) <= _LONGEST_CAUSE:
        return message
    why = message.rpartition(": ")[2][-_LONGEST_CAUSE // 2 :]
    return f"{message[: _LONGEST_CAUSE // 2]}...: {why}"


@dataclass(slots=True)
class ServerVerdict:
    """The result of the dry runs. ``notes`` name the objects that could not be validated."""

    refused: list[str] = field(default_factory=list)
    accepted: frozenset[Origin] = frozenset()
    notes: list[Note] = field(default_factory=list)


@dataclass(slots=True)
class _DryRuns:
    """The state of the dry runs. ``skipped`` explains why objects were not validated."""

    connection: "Connection"
    strictness: str
    names: Mapping[str, Sequence[str]]
    served: dict[str, Mapping[str, ServedKind] | None] = field(default_factory=dict)
    skipped: dict[Origin, str] = field(default_factory=dict)

    async def read_kinds(self, version: str) -> None:
        """Record in ``served`` which kinds the API server serves in an API version."""
        path = "/".join(
            (
                "/apis" if "/" in version else "/api",
                *(quote(part, safe="") for part in version.split("/")),
            )
        )
        try:
            found = decode(await self.connection.get(path), msgspec.json.Decoder(ServedKinds))
        except NotFound:
            self.served[version] = {}
        except Forbidden:
            self.served[version] = None
        except ConversionError as error:
            raise BadAnswer(f"GET {path}: the answer is not a list of kinds ({error})") from error
        else:
            self.served[version] = {
                each.kind: each for each in found.resources if "/" not in each.name
            }

    async def validate(self, dry_run: DryRun) -> list[str]:
        """Return the reasons why the API server refuses an object.

        The result is empty if the object is accepted or cannot be validated.

        Raises:
            KubeError: the API server fails.
        """
        origin, kinds = dry_run.manifest.origin, self.served[dry_run.api_version]
        served = (kinds or {}).get(dry_run.kind)
        if kinds is None:
            self.skipped[origin] = f"you may not list the kinds of {dry_run.api_version}"
            return []
        if served is None:
            if dry_run.kind in self.names["CustomResourceDefinition"]:
                self.skipped[origin] = "its CustomResourceDefinition is in the files"
                return []
            message = (
                f"no matches for kind {shown(dry_run.kind)} in version {shown(dry_run.api_version)}"
            )
            return [str(origin.error("", f"{message}: the cluster does not serve it"))]
        try:
            await self._dry_run(dry_run, served)
        except (Unauthorized, TooManyRequests, ServerError):
            raise
        except ApiError as error:
            if isinstance(error, Forbidden) and is_denied_by_rbac(error.server_message):
                self.skipped[origin] = error.server_message
            elif is_object_in_files(error.server_message, self.names):
                self.skipped[origin] = f"it needs an object in the files ({error.server_message})"
            else:
                return refusal_lines(dry_run, error.server_message, error.details)
        return []

    async def _dry_run(self, dry_run: DryRun, served: ServedKind) -> None:
        version, body = dry_run.api_version, dry_run.body
        metadata = body.get("metadata")
        if not served.namespaced and isinstance(metadata, dict):
            body = {
                **body,
                "metadata": {key: metadata[key] for key in metadata if key != "namespace"},
            }
        where = f"/namespaces/{quote(dry_run.namespace, safe='')}" if served.namespaced else ""
        path = f"{'/apis' if '/' in version else '/api'}/{version}{where}/{served.name}"
        query = {"dryRun": "All", "fieldValidation": self.strictness, "fieldManager": _MANAGER}
        named = f"{path}/{quote(dry_run.name, safe='')}" if dry_run.name else ""
        data = msgspec.json.encode(body)
        if named and await self._exists(named):
            query["force"] = "true"
            await self.connection.patch(f"{named}?{urlencode(query)}", data, content_type=_APPLY)
        else:
            await self.connection.post(f"{path}?{urlencode(query)}", data)

    async def _exists(self, path: str) -> bool:
        try:
            await self.connection.get(path)
        except NotFound:
            return False
        return True


def ask_server(
    api: ApiOptions, manifests: Sequence[Manifest], kinds: "PodKinds", strictness: str
) -> ServerVerdict:
    """Have the API server validate manifests and their pod templates. Exit if requests fail.

    ``strictness`` is the value of the query parameter ``fieldValidation``.
    """
    requests = list(dry_runs(manifests, kinds))
    return (
        read_or_exit(_validate(api, requests, _names(manifests), strictness))
        if requests
        else ServerVerdict()
    )


async def _validate(
    api: ApiOptions, requests: Sequence[DryRun], names: Mapping[str, Sequence[str]], strictness: str
) -> ServerVerdict:
    async with connected(api) as connection:
        state = _DryRuns(connection, strictness, names)
        slots = asyncio.Semaphore(_AT_A_TIME)
        done = 0
        await asyncio.gather(*map(state.read_kinds, {dry_run.api_version for dry_run in requests}))
        with Progress(
            "Validating objects by dry runs:", len(requests), piped=SAY_AFTER_PIPED_S
        ) as progress:

            async def validate(dry_run: DryRun) -> list[str]:
                nonlocal done
                async with slots:
                    refused = await state.validate(dry_run)
                done += 1
                progress.at(done)
                return refused

            answers = await asyncio.gather(*map(validate, requests))
    refused = [line for lines in answers for line in lines]
    origins = dict.fromkeys(dry_run.manifest.origin for dry_run in requests)
    skipped = {origin: state.skipped[origin] for origin in origins if origin in state.skipped}
    return ServerVerdict(refused, frozenset(origins.keys() - skipped.keys()), _notes(skipped))


def _notes(skipped: Mapping[Origin, str]) -> list[Note]:
    """Return one note about all objects that were not validated, or no note if there are none."""
    if not skipped:
        return []
    (origin, why), *others = skipped.items()
    more = f" and {len(others):,} more are" if others else " is"
    return [Note(f"{origin}{more} not validated by the API server: {why}")]


def _names(manifests: Sequence[Manifest]) -> Mapping[str, Sequence[str]]:
    """Return the names of the objects in the files, by kind.

    CustomResourceDefinitions are represented by the kinds that they define.
    """
    found: dict[str, list[str]] = {"CustomResourceDefinition": []}
    for manifest in manifests:
        if manifest.kind == "CustomResourceDefinition":
            spec: Any = manifest.body.get("spec")
            named = spec.get("names") if isinstance(spec, dict) else None
            kind = named.get("kind") if isinstance(named, dict) else None
            found["CustomResourceDefinition"].append(str(kind))
        else:
            found.setdefault(manifest.kind, []).append(manifest.namespaced_name[1])
    return found
