"""Describes a request to the API server, as both ways of sending one understand it."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

JSON = "application/json"
CONNECT_SECONDS = 5.0

Query = Mapping[str, str]
NO_QUERY: Query = {}


class ApiRequest(NamedTuple):
    """What is sent; ``within`` is in seconds and covers all of it."""

    method: str
    path: str
    within: float
    query: Query = NO_QUERY
    body: bytes = b""
    content_type: str = JSON

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def __str__(self) -> str:
        return f"{self.method} {self.target}"
