"""Reads a complete, consistent list of one kind of object."""

from typing import Protocol

from gputile.api.wording import shown
from gputile.kube.errors import BadAnswer, Gone
from gputile.kube.transport.request import Query
from gputile.kube.watching.decoding import ObjectDecoder, Replaced, T, UnreadableObject

PAGE_SIZE = 500
# Kubernetes supports 150,000 pods in a cluster, and 5,000 nodes. An API server fills its pages: so many objects are 600
# pages of 500, and a page that is not full is not followed by another one.
MOST_OBJECTS = 300_000
_MOST_SHORT_PAGES = 100


class Reading(Protocol):
    """What lists are read from: a Connection, or one that waits less long."""

    async def get(self, path: str, query: Query = ..., *, within: float | None = None) -> bytes:
        """Return the object or list at ``path``."""


async def list_pages(
    connection: Reading,
    path: str,
    decoder: ObjectDecoder[T],
    query: Query,
    *,
    page_size: int = PAGE_SIZE,
    seconds: float = 60.0,
) -> tuple[str, Replaced[T]]:
    """Return the version of the list and all its objects, read from a quorum in pages of ``page_size``.

    ``seconds`` is the limit of one page.

    Raises:
        KubeError: it cannot be read.
    """
    objects: list[T] = []
    unreadable: list[UnreadableObject] = []
    asked = {**query, "limit": str(page_size)}
    pages = short = 0
    while True:
        try:
            body = await connection.get(path, asked, within=seconds)
        except Gone:
            if "limit" not in asked:
                raise
            # the continue token has expired: the whole list at once is the one way that always comes to an end
            asked = dict(query)
            objects, unreadable = [], []
            pages = short = 0
            continue
        page = decoder.page(body)
        _check_kind(path, page.kind)
        objects += page.objects
        unreadable += page.unreadable
        pages, short = pages + 1, short + (len(page.objects) + len(page.unreadable) < page_size)
        known = len(objects) + len(unreadable)
        if page.metadata.continue_ and (short >= _MOST_SHORT_PAGES or known >= MOST_OBJECTS):
            raise BadAnswer(
                f"GET {path}: the list goes on after {pages:,} pages with {known:,} objects, {short:,} of them not "
                "full: no cluster has so many; is the server an API server?"
            )
        if not page.metadata.continue_:
            return page.metadata.resource_version, Replaced(objects, unreadable)
        if asked.get("continue") == page.metadata.continue_:
            raise BadAnswer(f"GET {path}: the list never ends: a page names itself as the next one")
        asked = {**asked, "continue": page.metadata.continue_}


def _check_kind(path: str, kind: str) -> None:
    """Raise BadAnswer where a list is of another kind than ``path`` names, as in ``pods`` and ``PodList``."""
    resource = path.rpartition("/")[2]
    name = kind.lower().removesuffix("list")
    plurals = f"{name}s", f"{name}es", f"{name.removesuffix('y')}ies", name
    if kind not in ("", "List") and (not kind.endswith("List") or resource not in plurals):
        raise BadAnswer(
            f"GET {path}: the answer is of kind {shown(kind)}, and no list of {resource}: is the server an API server?"
        )


async def list_all(connection: Reading, path: str, kind: type[T], query: Query | None = None) -> list[T]:
    """Return all objects at ``path`` that can be read, those of a selection by ``query``.

    Raises:
        KubeError: the list cannot be read.
    """
    _, replaced = await list_pages(connection, path, ObjectDecoder(kind), query or {})
    return list(replaced.objects)
