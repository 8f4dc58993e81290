"""Pods of gputile's image on real nodes, each with an address of its own: what all tests of pods stand on."""

from typing import Any

import pytest

from gputile.version import VERSION
from tests.e2e.pods.cluster import GPU_NODE, GPUTILE_IMAGE, PLAIN_NODE, PodCluster, is_ready

pytestmark = pytest.mark.timeout(900)
ASK = """
import json, os, ssl, sys, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
address = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}/version"
request = urllib.request.Request(address, headers={"Authorization": f"Bearer {open(account + '/token').read()}"})
context = ssl.create_default_context(cafile=account + "/ca.crt")
print(json.load(urllib.request.urlopen(request, context=context, timeout=30))["gitVersion"])
"""
PORT = 8000
SERVE = f"import http.server as h; h.ThreadingHTTPServer(('', {PORT}), h.BaseHTTPRequestHandler).serve_forever()"
REACH = f"import socket, sys; socket.create_connection((sys.argv[1], {PORT}), 30); print('reached')"


def server(node: str) -> dict[str, Any]:
    """Return a pod of gputile's image on a node, which listens on a port."""
    container: dict[str, Any] = {"name": "main", "image": GPUTILE_IMAGE, "command": ["python", "-c", SERVE]}
    container["readinessProbe"] = {"tcpSocket": {"port": PORT}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"server-{node}", "namespace": "default"},
        "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1},
    }


def test_pods_reach_each_other_and_the_api_server(pod_cluster_here: PodCluster) -> None:
    """By kubectl, through the kubelets: the image runs as its user, has an address, and asks the API server."""
    cluster = pod_cluster_here
    cluster.create(server(GPU_NODE), server(PLAIN_NODE))
    cluster.wait(lambda: len([p for p in cluster.pods("default") if is_ready(p)]) == 2, "two pods to be ready")
    addresses = {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in cluster.pods("default")}
    assert len(set(addresses.values())) == 2
    for here, there in ((GPU_NODE, PLAIN_NODE), (PLAIN_NODE, GPU_NODE)):
        name = f"server-{here}"
        assert cluster.run_in("default", name, "gputile", "--version") == f"gputile {VERSION}\n"
        assert cluster.run_in("default", name, "python", "-c", ASK).startswith("v1.")
        reached = cluster.run_in("default", name, "python", "-c", REACH, addresses[there])
        assert reached == "reached\n"
