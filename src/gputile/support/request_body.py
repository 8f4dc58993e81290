"""Reads request bodies without letting anybody fill the memory or hold a place for ever."""

import asyncio
from typing import Final

from starlette.requests import Request

from gputile.api.quantity import MIB

MOST_BYTES: Final = 64 * MIB  # of all bodies that are being read at the same time
BODY_SECONDS: Final = 5.0


class BodyRefused(Exception):
    """The body is not read on; ``status`` is the HTTP status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class BodyReader:
    """Counts the bytes of all bodies that are being read. Where they are too many, the largest is given up.

    So whoever sends large bodies slowly cannot keep out the small ones of others. ``largest`` is how many bytes one
    may have, ``most`` how many all together, ``seconds`` how long one may take to come.
    """

    def __init__(self, largest: int, *, most: int = MOST_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._largest = largest
        self._most = most
        self._seconds = seconds
        self._sizes: dict[asyncio.Timeout, int] = {}  # of each body, by what ends its reading
        self._given_up: set[asyncio.Timeout] = set()
        self.held = 0

    async def body(self, request: Request) -> bytes:
        """Return the body.

        Raises:
            BodyRefused: it is too large, too slow, or too much with the others.
        """
        parts: list[bytes] = []
        limit = asyncio.timeout(self._seconds)
        self._sizes[limit] = 0
        try:
            async with limit:
                async for part in request.stream():
                    self._sizes[limit] += len(part)
                    self.held += len(part)
                    if self._sizes[limit] > self._largest:
                        raise BodyRefused(413, f"the body has more than {self._largest} bytes")
                    if self.held > self._most:
                        self._make_room()
                    if limit in self._given_up:
                        raise _too_much()
                    parts.append(part)
        except TimeoutError:
            if limit in self._given_up:
                raise _too_much() from None
            raise BodyRefused(408, f"the body did not come within {self._seconds:g} s") from None
        finally:
            self.held -= self._sizes.pop(limit)
            self._given_up.discard(limit)
        return b"".join(parts)

    def _make_room(self) -> None:
        """Give up the largest bodies until the others are not too much."""
        going = [limit for limit in self._sizes if limit not in self._given_up]
        left = sum(self._sizes[limit] for limit in going)
        going.sort(key=self._sizes.__getitem__)
        while left > self._most:
            worst = going.pop()  # of equal ones the latest
            left -= self._sizes[worst]
            self._given_up.add(worst)
            if not worst.expired():
                worst.reschedule(asyncio.get_running_loop().time())


def _too_much() -> BodyRefused:
    return BodyRefused(503, "too much is being read at the same time; try again")
