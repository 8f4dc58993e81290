"""The page as everybody in the cluster has it: a pod that shows each viewer what that viewer's token may see."""

import json
import ssl
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.e2e.pods.cluster import GPU_NODE, PLAIN_NODE, is_ready
from tests.e2e.pods.release import PodRelease
from tests.e2e.pods.test_rights import FORBIDDEN, NOBODY, assert_powerless, intrude
from tests.e2e.pods.workload import said_by, sample_pod, share_of
from tests.localcluster.identities import Authority

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("B7")]
HOST, SECRET, HIDDEN = "page.example.com", "page-certificate", "hidden"
PORT = 8420
VIEWERS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sees-nodes}
rules: [{apiGroups: [""], resources: [nodes], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sees-nodes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sees-nodes}
subjects: [{kind: ServiceAccount, name: half, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: half-sees-default, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: half, namespace: default}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: half, namespace: default}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: nobody, namespace: default}
"""


@pytest.fixture(scope="module")
def browsers_trust(release: PodRelease) -> Iterator[ssl.SSLContext]:
    """The page runs, with a certificate for HOST; what browsers have to trust."""
    cluster = release.cluster
    directory = cluster.plane.directory / "page"
    directory.mkdir()
    authority = Authority(directory)
    pair = authority.server("page", [HOST])
    files = (f"--cert={pair.certificate}", f"--key={pair.key}", f"--namespace={release.namespace}")
    cluster.kubectl("create", "secret", "tls", SECRET, *files)
    cluster.kubectl("apply", "-f", "-", input=VIEWERS)
    release.upgrade({"web.enabled": True, "web.tlsSecret": SECRET})
    cluster.wait(lambda: any(map(is_ready, release.pods("web"))), "the page's pod to be ready")
    yield ssl.create_default_context(cafile=authority.certificate)
    release.upgrade({"web.enabled": False})
    cluster.wait(lambda: not release.pods("web"), "the page's pod to be gone")
    cluster.kubectl("delete", "-f", "-", input=VIEWERS)
    cluster.kubectl("delete", "secret", SECRET, f"--namespace={release.namespace}")


@pytest.fixture
def browser(release: PodRelease, browsers_trust: ssl.SSLContext) -> Iterator[httpx.Client]:
    """Who speaks HTTPS with the page's pod as HOST, and keeps its cookies."""
    (pod,) = release.pods("web")
    address = pod["status"]["podIP"]
    headers = {"host": f"{HOST}:{PORT}", "origin": f"https://{HOST}:{PORT}"}
    with httpx.Client(base_url=f"https://{address}:{PORT}", headers=headers, verify=browsers_trust) as found:
        found.event_hooks["request"].append(_name_the_host)
        yield found


def _name_the_host(request: httpx.Request) -> None:
    request.extensions["sni_hostname"] = HOST  # which also is the name that the certificate has to have


def log_in(browser: httpx.Client, release: PodRelease, account: str) -> httpx.Response:
    """Log in with a token as kubectl prints it."""
    token = release.cluster.kubectl("create", "token", account, "--namespace=default")
    answer = browser.post("/login", data={"token": token})
    for name, value in answer.cookies.items():
        browser.headers["cookie"] = f"{name}={value}"  # a jar would not send it to an address
    return answer


def pods_of(node: dict[str, Any]) -> set[tuple[str, str]]:
    """Return namespace and name of the pods that a node's record has."""
    return {(pod["namespace"], pod["name"]) for pod in node.get("pods", [])}


def test_a_viewer_sees_the_names_that_its_token_may_see(release: PodRelease, browser: httpx.Client) -> None:
    cluster = release.cluster
    cluster.kubectl("create", "namespace", HIDDEN)
    try:
        hidden = sample_pod("theirs", 8)
        hidden["metadata"]["namespace"] = HIDDEN
        cluster.create(sample_pod("mine", 16), hidden)
        assert said_by(cluster, "mine") == share_of(2048)
        cluster.wait(lambda: any(map(is_ready, cluster.pods(HIDDEN))), "the other namespace's pod to run")
        assert browser.get("/api/state").status_code == 401
        assert log_in(browser, release, "half").status_code == 303
        nodes: dict[str, dict[str, Any]] = {}

        def drawn() -> bool:
            nodes.update((node["name"], node) for node in browser.get("/api/state").json()["nodes"])
            return len(nodes.get(GPU_NODE, {}).get("pods", [])) == 2

        cluster.wait(drawn, "the page to show both pods")
        assert pods_of(nodes[GPU_NODE]) == {("default", "mine"), ("(hidden)", "(hidden)")}
        assert nodes[GPU_NODE]["unit"] == 128
        assert "theirs" not in json.dumps(nodes)
        assert browser.get("/api/pod", params={"namespace": "default", "name": "mine"}).status_code == 200
        assert browser.get("/api/pod", params={"namespace": HIDDEN, "name": "theirs"}).status_code == 404

        def measured() -> bool:
            answer = browser.get("/api/usage", params={"node": GPU_NODE}).json()
            return "default/mine" in answer.get("nodes", {}).get(GPU_NODE, {}).get("pods", {})

        cluster.wait(measured, "the node's agent to be asked what pods use, by the page's own rights")
        assert browser.post("/logout").status_code == 303
        assert browser.get("/api/state").status_code == 401
    finally:
        cluster.kubectl("delete", "namespace", HIDDEN)


def test_who_may_not_list_nodes_sees_nothing(release: PodRelease, browser: httpx.Client) -> None:
    assert log_in(browser, release, "nobody").status_code == 403
    assert browser.get("/api/state").status_code == 401


def test_from_the_page_nothing_can_be_written(release: PodRelease, browsers_trust: ssl.SSLContext) -> None:
    (pod,) = release.pods("web")
    found = intrude(release, pod, "web", PLAIN_NODE)
    assert found["uid"] == NOBODY
    assert_powerless(found)
    assert (found["writes"], found["changes_node"], found["reports_node"]) == ([], FORBIDDEN, FORBIDDEN)
