"""Reads request bodies without letting anybody fill the memory or hold a place for ever."""

import asyncio
from typing import Final

from starlette.requests import Request

# The API server takes objects of up to 3 MiB and sends two of them at most (old and new), in one AdmissionReview.
LARGEST_BODY: Final = 7 * 1024 * 1024
MOST_BYTES: Final = 64 * 1024 * 1024  # of all bodies that are being read at the same time
BODY_SECONDS: Final = 5.0


class BodyRefused(Exception):
    """The body is not read on; ``status`` is the HTTP status that says so."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class BodyReader:
    """Counts the bytes of all bodies that are being read."""

    def __init__(self, *, largest: int = LARGEST_BODY, most: int = MOST_BYTES, seconds: float = BODY_SECONDS) -> None:
        self._largest = largest
        self._most = most
        self._seconds = seconds
        self.held = 0

    async def body(self, request: Request) -> bytes:
        """Return the body.

        Raises:
            Refused: it is too large, too slow, or too much with the others.
        """
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._seconds):
                async for part in request.stream():
                    size += len(part)
                    self.held += len(part)
                    if size > self._largest:
                        raise BodyRefused(413, f"the body has more than {self._largest} bytes")
                    if self.held > self._most:
                        raise BodyRefused(503, "too much is being read at the same time; try again")
                    parts.append(part)
        except TimeoutError:
            raise BodyRefused(408, f"the body did not come within {self._seconds:g} s") from None
        finally:
            self.held -= size
        return b"".join(parts)
