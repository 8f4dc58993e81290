"""A complete, consistent list of one kind of object."""

from typing import Protocol

from gputile.kube.decoding import ObjectDecoder, Replaced, T, UnreadableObject
from gputile.kube.errors import BadAnswer, Gone
from gputile.kube.request import Query

PAGE_SIZE = 500


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
    while True:
        try:
            body = await connection.get(path, asked, within=seconds)
        except Gone:
            if "limit" not in asked:
                raise
            # the continue token has expired: the whole list at once is the one way that always comes to an end
            asked = dict(query)
            objects, unreadable = [], []
            continue
        page = decoder.page(body)
        objects += page.objects
        unreadable += page.unreadable
        if not page.metadata.continue_:
            return page.metadata.resource_version, Replaced(objects, unreadable)
        if asked.get("continue") == page.metadata.continue_:
            raise BadAnswer(f"GET {path}: the list never ends: a page names itself as the next one")
        asked = {**asked, "continue": page.metadata.continue_}


async def list_all(connection: Reading, path: str, kind: type[T], query: Query | None = None) -> list[T]:
    """Return all objects at ``path`` that can be read, those of a selection by ``query``.

    Raises:
        KubeError: the list cannot be read.
    """
    _, replaced = await list_pages(connection, path, ObjectDecoder(kind), query or {})
    return list(replaced.objects)
