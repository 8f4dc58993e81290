"""Writes on pods: what they change, and on which condition. The end-to-end tests show that an API server takes them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.kube.client import Connection
from gputile.kube.errors import BadAnswer, Conflict
from gputile.kube.writes import (
    annotate_pod,
    annotate_pod_status,
    evict_pod,
    mark_preempted,
    mark_unschedulable,
    read_pod,
    remove_scheduling_gate,
    write_reservation,
)
from tests.fakes.apiserver import FakeApiServer

pytestmark = pytest.mark.anyio

PODS = "/api/v1/namespaces/ns/pods"
GATED = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p", "resourceVersion": "7"},
    "spec": {"schedulingGates": [{"name": "theirs"}, {"name": "ours"}]},
}
POD = msgspec.convert(GATED, Pod)
THIS_POD, THIS_VERSION = {"uid": "uid-p"}, {"uid": "uid-p", "resourceVersion": "7"}
Send = Callable[[Connection], Awaitable[object]]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[FakeApiServer, Connection]]:
    server = FakeApiServer()
    server.put(PODS, GATED)
    async with server.connected() as connection:
        yield server, connection


def condition(kind: str, status: str, reason: str, message: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("send", "path", "kind", "body"),
    [
        (
            lambda to: annotate_pod(to, POD, {"a": "1", "b": None}),
            "p",
            "merge-patch+json",
            {"metadata": {**THIS_VERSION, "annotations": {"a": "1", "b": None}}},
        ),
        (
            lambda to: write_reservation(to, POD, {"a": "1"}, "n", within=60.0),
            "p/status",
            "merge-patch+json",
            {"metadata": {**THIS_VERSION, "annotations": {"a": "1"}}, "status": {"nominatedNodeName": "n"}},
        ),
        (
            lambda to: write_reservation(to, POD, {"a": None}, "", within=60.0),
            "p/status",
            "merge-patch+json",
            {"metadata": {**THIS_VERSION, "annotations": {"a": None}}, "status": {"nominatedNodeName": None}},
        ),
        (
            lambda to: remove_scheduling_gate(to, POD, "ours"),
            "p",
            "json-patch+json",
            [
                {"op": "test", "path": "/metadata/uid", "value": "uid-p"},
                {"op": "test", "path": "/spec/schedulingGates/1", "value": {"name": "ours"}},
                {"op": "remove", "path": "/spec/schedulingGates/1"},
            ],
        ),
        (
            lambda to: mark_unschedulable(to, POD, "why"),
            "p/status",
            "strategic-merge-patch+json",
            {"metadata": THIS_POD, "status": condition("PodScheduled", "False", "Unschedulable", "why")},
        ),
        (
            lambda to: mark_preempted(to, "ns", "p", "uid-p", "why", within=60.0),
            "p/status",
            "strategic-merge-patch+json",
            {"metadata": THIS_POD, "status": condition("DisruptionTarget", "True", "PreemptionByScheduler", "why")},
        ),
    ],
)
async def test_a_write_is_for_the_pod_that_was_decided_about(send: Send, path: str, kind: str, body: Any) -> None:
    async with connected() as (server, connection):
        server.fault("patch", "answer", status=200, body=json.dumps(GATED).encode())
        await send(connection)
        request = server.requests[-1]
        assert (request.path, request.headers["content-type"]) == (f"{PODS}/{path}", f"application/{kind}")
        assert request.json() == body


async def test_an_eviction_is_of_one_pod_by_its_uid() -> None:
    async with connected() as (server, connection):
        server.fault("post", "answer", status=201, body=b"{}")
        await evict_pod(connection, "ns", "p", "uid-p", within=60.0)
        assert server.requests[-1].path == f"{PODS}/p/eviction"
        assert server.requests[-1].json()["deleteOptions"] == {"preconditions": {"uid": "uid-p"}}


async def test_another_version_is_a_conflict_a_pod_that_is_gone_none_and_what_is_no_pod_an_error() -> None:
    async with connected() as (server, connection):
        with pytest.raises(Conflict):
            await annotate_pod(connection, POD, {"a": "2"})
        assert await read_pod(connection, "ns", "q") is None
        assert await annotate_pod_status(connection, "ns", "q", {"a": "1"}, within=60.0) is None
        server.fault("get", "answer", status=200, body=b"[]")
        with pytest.raises(BadAnswer):
            await read_pod(connection, "ns", "p")
