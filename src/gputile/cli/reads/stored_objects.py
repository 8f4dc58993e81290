"""Reads the objects of manifests as they are in a live cluster."""

import asyncio
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gputile.cli.options.common import Reach
from gputile.cli.reads.bounded_reads import read_or_leave, reads
from gputile.kube.errors import BadAnswer, Forbidden, NotFound
from gputile.kube.objects import Reading

if TYPE_CHECKING:
    from gputile.tools.simulator.documents.manifests import Manifest
    from gputile.tools.simulator.updates.stored_objects import StoredObjects

_MOST_READ: Final = 2_000
_AT_A_TIME: Final = 8
_CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
_POD: Final = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)")


def read_stored(reach: Reach, manifests: "Iterable[Manifest]") -> "StoredObjects":
    """Return those objects of which an API server refuses some changes; leave the program where that is not possible.

    Those that may not be read are not known, nor are those beyond the first 2,000.
    """
    from gputile.tools.simulator.updates.stored_objects import StoredObjects, as_stored, where

    wanted = {path: manifest for manifest in manifests if (path := where(manifest))}
    paths = list(wanted)
    found = StoredObjects(unread=dict.fromkeys(paths[_MOST_READ:], f"more than {_MOST_READ:,} objects are not read"))

    async def read() -> StoredObjects:
        async with reads(reach) as connection:
            turn = asyncio.Semaphore(_AT_A_TIME)

            async def one(path: str) -> None:
                async with turn:
                    try:
                        body = await _object(connection, path)
                    except NotFound:
                        return
                    except Forbidden as error:
                        found.unread[path] = str(error)
                        return
                try:
                    if body is not None:
                        found.bodies[path] = as_stored(wanted[path], body)
                except (ValueError, RecursionError) as error:
                    raise BadAnswer(f"GET {path}: the answer is no {wanted[path].kind} ({error})") from error

            await asyncio.gather(*map(one, paths[:_MOST_READ]))
            await _read_classes(connection, wanted.values(), found)
            return found

    return read_or_leave(read()) if paths else found


async def _read_classes(connection: Reading, manifests: "Iterable[Manifest]", found: "StoredObjects") -> None:
    """Add the StorageClasses of claims that grow.

    Raises:
        KubeError: the API server fails.
    """
    for claim, name in found.growing(manifests):
        if not name or name in found.classes:
            continue
        try:
            found.classes[name] = await _object(connection, f"{_CLASSES}/{quote(name, safe='')}")
        except NotFound:
            found.classes[name] = None
        except Forbidden as error:
            found.unread[claim] = str(error)


async def _object(connection: Reading, path: str) -> dict[str, Any] | None:
    """Return the object at ``path``. Pods are listed, which whoever reads a cluster may do; None is for none.

    Raises:
        KubeError: it is not there, or cannot be read.
    """
    import msgspec

    pod = _POD.fullmatch(path)
    if pod is None:
        text = await connection.get(path)
    else:
        fields = f"metadata.namespace={pod[1]},metadata.name={pod[2]}"
        text = await connection.get("/api/v1/pods", {"fieldSelector": fields})
    try:
        if pod is None:
            whole: dict[str, Any] = msgspec.json.decode(text, type=dict)
            return whole
        listed = msgspec.json.decode(text, type=dict[str, Any]).get("items") or []
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"GET {path}: the answer is no object of an API server") from error
    if not isinstance(listed, list):
        raise BadAnswer(f"GET {path}: the answer is no list of an API server")
    return next((each for each in listed if _place(each) == pod.groups()), None)


def _place(body: Any) -> tuple[Any, Any]:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    found = metadata if isinstance(metadata, dict) else {}
    return found.get("namespace"), found.get("name")
