"""Serves an extender that decides nothing, to measure the cost of calling any extender.

Filter returns all given nodes, prioritize returns zeros, and bind sends a plain Binding.
``start_idle_extender`` runs this extender as a process next to a control plane.
"""

import argparse
import asyncio
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2 as httpx
import msgspec
from aiohttp import web
from tests.localcluster.machine import LOOPBACK, accepts, free_ports

from gputile.support.http_server import Server, bound_ports

if TYPE_CHECKING:
    from tests.localcluster.controlplane import ControlPlane
    from tests.localcluster.processes import Process

NULL = msgspec.Raw(b"null")


class _Nodes(msgspec.Struct):
    """The nodes in the arguments of filter, as undecoded bytes."""

    names: msgspec.Raw = msgspec.field(name="NodeNames", default=NULL)
    nodes: msgspec.Raw = msgspec.field(name="Nodes", default=NULL)


class _Metadata(msgspec.Struct):
    name: str


class _Node(msgspec.Struct):
    metadata: _Metadata


class _NodeList(msgspec.Struct):
    items: list[_Node]


class _Prioritized(msgspec.Struct):
    names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    nodes: _NodeList | None = msgspec.field(name="Nodes", default=None)


class _Bind(msgspec.Struct):
    pod: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


_decode_nodes = msgspec.json.Decoder(_Nodes).decode
_decode_prioritized = msgspec.json.Decoder(_Prioritized).decode
_decode_bind = msgspec.json.Decoder(_Bind).decode


class IdleExtender:
    """The request handler. ``api`` is the client for Bindings, or None if bind is not served."""

    def __init__(self, api: httpx.AsyncClient | None = None) -> None:
        self._api = api

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one call of kube-scheduler."""
        status, answer = await self._answer(
            request.path.removesuffix("-claims"), await request.content.read()
        )
        return web.Response(status=status, body=answer, content_type="application/json")

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/filter":
            given = _decode_nodes(body)
            return 200, b'{"NodeNames":' + bytes(given.names) + b',"Nodes":' + bytes(
                given.nodes
            ) + b"}"
        if path == "/prioritize":
            asked = _decode_prioritized(body)
            names = asked.names or [
                node.metadata.name for node in (asked.nodes.items if asked.nodes else ())
            ]
            return 200, msgspec.json.encode([{"Host": name, "Score": 0} for name in names])
        if path == "/bind" and self._api is not None:
            return 200, msgspec.json.encode({"Error": await _bind(self._api, _decode_bind(body))})
        return 404, b"{}"


async def _bind(api: httpx.AsyncClient, wanted: _Bind) -> str:
    """Bind as the scheduler would. Return the error, or "" for success."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": wanted.pod, "uid": wanted.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": wanted.node},
    }
    answer = await api.post(
        f"/api/v1/namespaces/{wanted.namespace}/pods/{wanted.pod}/binding", json=binding
    )
    return answer.text if answer.is_error else ""


def start_idle_extender(
    plane: "ControlPlane", name: str, *, bind: bool = False
) -> "tuple[Process, str]":
    """Start an idle extender for ``plane``, and wait until it is ready.

    Return its process and its URL.
    """
    (port,) = free_ports(1)
    command: list[str | Path] = [sys.executable, "-m", __spec__.name, f"--port={port}"]
    if bind:
        identity = plane.identity("system:kube-scheduler")
        command += [f"--api={plane.url}", f"--ca={plane.ca}"]
        command += [f"--certificate={identity.certificate}", f"--key={identity.key}"]
    root = Path(__file__).parent.parent
    process = plane.start_process(
        name, command, ready=lambda: accepts(port), environment={"PYTHONPATH": str(root)}
    )
    return process, f"http://{LOOPBACK}:{port}"


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    for option in ("--api", "--ca", "--certificate", "--key"):
        parser.add_argument(
            option, help="where and as whom to bind; without them bind is not served"
        )
    options = parser.parse_args()
    api = None
    if options.api:
        context = ssl.create_default_context(cafile=options.ca)
        context.load_cert_chain(options.certificate, options.key)
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
        api = httpx.AsyncClient(
            base_url=options.api, verify=context, limits=limits, trust_env=False
        )
    asyncio.run(_serve(Server(IdleExtender(api), "--port", LOOPBACK, options.port)))


async def _serve(server: Server) -> None:
    with bound_ports(server):
        await server.answer()


if __name__ == "__main__":
    main()
