"""Users of a cluster by their tokens, and what they may list, as the API server reviews them."""

from typing import Any

from tests.fakes.apiserver import FakeApiServer

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

Right = tuple[str, str]
"""A resource, and the namespace in which it may be listed: "" for all."""


class Users:
    """What each user may list; the token of a user is ``token-NAME``. Tests change it at any time."""

    def __init__(self, server: FakeApiServer) -> None:
        self.rights: dict[str, set[Right]] = {}
        server.reviews[TOKEN_REVIEWS] = self._token
        server.reviews[ACCESS_REVIEWS] = self._access

    def _token(self, spec: dict[str, Any]) -> dict[str, Any]:
        name = spec["token"].removeprefix("token-")
        if name not in self.rights or name == spec["token"]:
            return {"error": "unknown"}
        return {"authenticated": True, "user": {"username": name, "uid": f"uid-{name}", "groups": ["people"]}}

    def _access(self, spec: dict[str, Any]) -> dict[str, Any]:
        assert spec["groups"] == ["people"]
        assert spec["uid"] == f"uid-{spec['user']}"
        asked = spec["resourceAttributes"]
        assert asked["verb"] == "list"
        rights = self.rights.get(spec["user"], set())
        return {"allowed": bool({(asked["resource"], ""), (asked["resource"], asked.get("namespace", ""))} & rights)}
