"""An API server's refusal names the permission that is missing, and keeps what a proxy says."""

import pytest

from gputile.kube.errors import api_error, permission_of


@pytest.mark.parametrize(
    ("method", "path", "permission"),
    [
        ("GET", "/api/v1/nodes?limit=5", 'verb "list" on resource "nodes" of API group "" in the whole cluster'),
        ("GET", "/api/v1/nodes/n", 'verb "get" on resource "nodes" of API group "" in the whole cluster'),
        ("GET", "/api/v1/nodes?watch=1", 'verb "watch" on resource "nodes" of API group "" in the whole cluster'),
        ("GET", "/api/v1/namespaces/ns", 'verb "get" on resource "namespaces" of API group "" in the whole cluster'),
        (
            "PATCH",
            "/api/v1/nodes/n/status",
            'verb "patch" on resource "nodes/status" of API group "" in the whole cluster',
        ),
        (
            "PATCH",
            "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l",
            'verb "patch" on resource "leases" of API group "coordination.k8s.io" in namespace "ns"',
        ),
        ("GET", "/version", 'verb "get" on the non-resource URL "/version"'),
    ],
)
def test_the_permission_that_a_request_needs(method: str, path: str, permission: str) -> None:
    assert permission_of(method, path) == permission


def test_what_a_proxy_says_is_kept() -> None:
    error = api_error("GET", "/api", 502, b"<html>upstream is away</html>")
    assert error.may_have_been_executed
    assert "upstream is away" in str(error)
