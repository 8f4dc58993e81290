"""A plain client of the API server: what it is asked and what it answers, without a library in between."""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

import httpx2 as httpx

from tests.localcluster.identities import KeyPair
from tests.localcluster.processes import PATIENCE_S

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
CONNECTIONS = 32


class ApiError(RuntimeError):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, status: int, body: str) -> None:
        super().__init__(f"{method} {path}: {status} {body[:8000]}")
        self.status = status


class Api:
    """Requests as one user, over keep-alive connections; may be used from several threads."""

    def __init__(self, url: str, authority: str, identity: KeyPair) -> None:
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(identity.certificate, identity.key)
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        self.http = httpx.Client(base_url=url, verify=context, limits=limits, timeout=PATIENCE_S, trust_env=False)

    def get(self, path: str, **query: str) -> Any:
        """Return the object or list at ``path``."""
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create ``body`` under ``path``."""
        return self.request("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> Any:
        """Change the object at ``path``."""
        return self.request("PATCH", path, body, content_type=content_type)

    def delete(self, path: str, body: Mapping[str, Any] | None = None, **query: str) -> Any:
        """Delete the object at ``path``; ``body`` is DeleteOptions."""
        return self.request("DELETE", path, body, query=query)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Send one request and return the decoded answer.

        Raises:
            ApiError: the API server answered with an error; ``status`` tells which.
        """
        headers = {"Content-Type": content_type} if body is not None else None
        answer = self.http.request(method, path, params=query or None, json=body, headers=headers)
        if answer.is_error:
            raise ApiError(method, path, answer.status_code, answer.text)
        return answer.json() if answer.headers.get("Content-Type", "").startswith("application/json") else answer.text

    def healthy(self) -> bool:
        """Whether the API server says that it is ready."""
        return answers(self.http, "/readyz")

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def _to_services() -> httpx.Client:
    return httpx.Client(trust_env=False, timeout=10.0)


def is_ready(url: str) -> bool:
    """Whether the service there says that it is ready."""
    return answers(_to_services(), f"{url}/readyz")


def text_at(url: str) -> str:
    """Return what a service answers there, "" where it does not (yet)."""
    try:
        return _to_services().get(url).text
    except httpx.HTTPError:
        return ""


@contextmanager
def health_check(url: str, older: str = "") -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether ``url`` answers 200, whatever certificate it serves with.

    A program that has no such path is asked for the ``older`` one.
    """
    with httpx.Client(verify=False, trust_env=False) as client:
        yield lambda: answers(client, url, older)


def answers(client: httpx.Client, url: str, older: str = "") -> bool:
    """Whether ``url`` answers 200, or ``older`` where there is no such path."""
    try:
        status = client.get(url).status_code
        if status == httpx.codes.NOT_FOUND and older:
            status = client.get(older).status_code
    except httpx.HTTPError:
        return False
    return status == httpx.codes.OK
