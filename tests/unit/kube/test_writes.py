"""Writes on pods and nodes: what they change, and on which condition."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from gputile.api.core import Pod
from gputile.kube.client import Attempts, Connection
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
from tests.unit.kube.views import QUICK

PODS, NODES = "/api/v1/namespaces/ns/pods", "/api/v1/nodes"
GATED = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"},
    "spec": {"schedulingGates": [{"name": "theirs"}, {"name": "ours"}]},
}


@asynccontextmanager
async def stored_objects() -> AsyncIterator[tuple[FakeApiServer, Connection]]:
    server = FakeApiServer()
    server.put(PODS, GATED)
    server.put(NODES, {"metadata": {"name": "n"}})
    async with server.running(), Connection(server.access(), attempts=Attempts(2, QUICK)) as connection:
        yield server, connection


def stored(server: FakeApiServer) -> Pod:
    return msgspec.convert(server.store[PODS]["p"], Pod)


@pytest.mark.anyio
async def test_annotations_are_written_to_the_version_that_was_decided_about() -> None:
    async with stored_objects() as (server, connection):
        decided = stored(server)
        written = await annotate_pod(connection, decided, {"a": "1", "b": None})
        assert written.metadata.annotations == {"a": "1"}
        assert server.requests[-1].json() == {
            "metadata": {
                "uid": "uid-p",
                "resourceVersion": decided.metadata.resource_version,
                "annotations": {"a": "1", "b": None},
            }
        }
        with pytest.raises(Conflict):
            await annotate_pod(connection, decided, {"a": "2"})
        assert stored(server).metadata.annotations == {"a": "1"}


@pytest.mark.anyio
async def test_a_gate_is_removed_of_this_pod_and_where_it_was_seen() -> None:
    async with stored_objects() as (server, connection):
        server.fault("patch", "answer", status=200, body=json.dumps(GATED).encode())
        await remove_scheduling_gate(connection, stored(server), "ours")
        request = server.requests[-1]
        assert request.headers["content-type"] == "application/json-patch+json"
        assert request.json() == [
            {"op": "test", "path": "/metadata/uid", "value": "uid-p"},
            {"op": "test", "path": "/spec/schedulingGates/1", "value": {"name": "ours"}},
            {"op": "remove", "path": "/spec/schedulingGates/1"},
        ]


@pytest.mark.anyio
async def test_a_pod_that_is_gone_is_none_and_an_answer_that_is_no_pod_an_error() -> None:
    async with stored_objects() as (server, connection):
        assert await read_pod(connection, "ns", "q") is None
        assert await annotate_pod_status(connection, "ns", "q", {"a": "1"}, within=60.0) is None
        found = await read_pod(connection, "ns", "p")
        assert found is not None
        assert found.metadata.uid == "uid-p"
        server.fault("get", "answer", status=200, body=b"[]")
        with pytest.raises(BadAnswer):
            await read_pod(connection, "ns", "p")


@pytest.mark.anyio
async def test_a_place_is_kept_for_the_version_that_was_decided_about() -> None:
    async with stored_objects() as (server, connection):
        decided = stored(server)
        for _ in range(2):
            server.fault("patch", "answer", status=200, body=json.dumps(GATED).encode())
        await write_reservation(connection, decided, {"a": "1"}, "n", within=60.0)
        assert server.requests[-1].path == f"{PODS}/p/status"
        known = {"uid": "uid-p", "resourceVersion": decided.metadata.resource_version}
        assert server.requests[-1].json() == {
            "metadata": {**known, "annotations": {"a": "1"}},
            "status": {"nominatedNodeName": "n"},
        }
        await write_reservation(connection, decided, {"a": None}, "", within=60.0)
        assert server.requests[-1].json()["status"] == {"nominatedNodeName": None}


@pytest.mark.anyio
async def test_a_pod_is_marked_unschedulable_by_its_uid() -> None:
    async with stored_objects() as (server, connection):
        server.fault("patch", "answer", status=200, body=b"{}")
        await mark_unschedulable(connection, stored(server), "why")
        request = server.requests[-1]
        assert request.path == f"{PODS}/p/status"
        (condition,) = request.json()["status"]["conditions"]
        assert request.json()["metadata"] == {"uid": "uid-p"}
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "PodScheduled",
            "False",
            "Unschedulable",
        )


@pytest.mark.anyio
async def test_an_eviction_is_of_one_pod_by_its_uid_and_says_whose_it_is() -> None:
    async with stored_objects() as (server, connection):
        server.fault("post", "answer", status=201, body=b"{}")
        await evict_pod(connection, "ns", "p", "uid-p", within=60.0)
        assert server.requests[-1].path == f"{PODS}/p/eviction"
        assert server.requests[-1].json() == {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "p", "namespace": "ns"},
            "deleteOptions": {"preconditions": {"uid": "uid-p"}},
        }
        server.fault("patch", "answer", status=200, body=b"{}")
        await mark_preempted(connection, "ns", "p", "uid-p", "by another", within=60.0)
        request = server.requests[-1]
        assert request.headers["content-type"] == "application/strategic-merge-patch+json"
        (condition,) = request.json()["status"]["conditions"]
        assert request.json()["metadata"] == {"uid": "uid-p"}
        assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "PreemptionByScheduler")
