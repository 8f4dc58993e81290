"""What somebody who has broken into a container can do: tried from inside each of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.pods.cluster import GPU_NODE, GPUTILE_IMAGE, PLAIN_NODE
from tests.e2e.pods.release import PodRelease
from tests.localcluster.nvidiaruntime import DRIVER_STATE

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("B2")]
NOBODY = 65532
# Runs in the container, with what is there, and prints what it could do.
INTRUDER = """
import ctypes, json, os, ssl, urllib.error, urllib.request
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
libc = ctypes.CDLL(None, use_errno=True)

def can(act):
    try:
        act()
        return True
    except OSError:
        return False

def call(number):
    if number:
        raise OSError(ctypes.get_errno())

def put(path):
    with open(path + "/intruder", "w") as file:
        file.write("x")
    os.unlink(path + "/intruder")

account = "/var/run/secrets/kubernetes.io/serviceaccount/"
context = ssl.create_default_context(cafile=account + "ca.crt")
server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"

def ask(path, method="GET", body=None):
    headers = {"Authorization": "Bearer " + open(account + "token").read()}
    headers |= {"Content-Type": "application/json" if method == "POST" else "application/merge-patch+json"}
    request = urllib.request.Request(server + path, body and json.dumps(body).encode(), headers, method=method)
    try:
        return urllib.request.urlopen(request, context=context, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code

mounts = [line.split(" ") for line in open("/proc/self/mountinfo")]
dirs = [mount[4] for mount in mounts if os.path.isdir(mount[4]) and not mount[4].startswith(("/proc", "/sys", "/dev"))]
changed = {"metadata": {"annotations": {"intruder": "x"}}}
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"],
    "seccomp": status["Seccomp"],
    "first_process": open("/proc/1/cmdline").read().replace("\\0", " "),
    "writes": sorted(path for path in {"/", "/opt/gputile", *dirs} if can(lambda: put(path))),
    "mounts": can(lambda: call(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))),
    "unshares": can(lambda: call(libc.unshare(0x00020000))),
    "makes_devices": can(lambda: os.mknod("/dev/intruder", 0o060600, os.makedev(8, 0))),
    "opens_disks": any(can(lambda: os.close(os.open("/dev/" + name, os.O_RDONLY))) for name in ("vda", "sda", "mem")),
    "secrets": ask("/api/v1/secrets"),
    "creates_pods": ask("/api/v1/namespaces/default/pods?dryRun=All", "POST", {"metadata": {"name": "x"}}),
    "changes_node": ask("/api/v1/nodes/OTHER?dryRun=All", "PATCH", changed),
    "reports_node": ask("/api/v1/nodes/OTHER/status?dryRun=All", "PATCH", changed),
    "books_pod": ask("/api/v1/namespaces/BOOKED?dryRun=All", "PATCH", changed),
    "unshares_users": can(lambda: call(libc.unshare(0x10000000))),  # takes no capability, and all else from here on
}))
"""
FORBIDDEN, DENIED = 403, 422
UNFILTERED, FILTERED = "0", "2"  # SECCOMP_MODE_DISABLED and SECCOMP_MODE_FILTER
# Which directories each may write, and what it is answered where it changes a node, or its status.
MAY = {
    "webhook": (["/tmp"], FORBIDDEN, FORBIDDEN),
    "controller": ([], 200, 200),
    "scheduler": ([], 200, FORBIDDEN),
    "agent": (["/run/gputile", "/tmp", "/var/lib/gputile", "/var/lib/kubelet/device-plugins"], FORBIDDEN, DENIED),
}


WAITS = ["python", "-c", "import signal; signal.sigwait({signal.SIGTERM})"]


def intrude(release: PodRelease, pod: dict[str, Any], container: str, other: str) -> dict[str, Any]:
    """Run the intruder in a container, and return what it could do to the node ``other`` and a pod of it, too."""
    booked = release.agent(other)["metadata"]
    script = INTRUDER.replace("OTHER", other).replace("BOOKED", f"{booked['namespace']}/pods/{booked['name']}")
    own = f"--namespace={release.namespace}"
    printed = release.cluster.kubectl(
        "exec", own, pod["metadata"]["name"], f"--container={container}", "--", "python", "-c", script
    )
    found: dict[str, Any] = json.loads(printed)
    writes = [path for path in found["writes"] if path != DRIVER_STATE]  # it stands for the driver's devices
    found["writes"] = [path for path in writes if not any(path.startswith(f"{each}/") for each in writes)]
    return found


def assert_powerless(found: dict[str, Any]) -> None:
    """No capability now or ever, no process but its container's, no device, no mount, nobody's Secrets and pods."""
    assert (found["capabilities"], found["no_new_privileges"], found["seccomp"]) == (0, "1", FILTERED)
    assert "/opt/gputile/bin/" in found["first_process"]
    for act in ("mounts", "unshares", "unshares_users", "makes_devices", "opens_disks"):
        assert not found[act], act
    assert (found["secrets"], found["creates_pods"]) == (FORBIDDEN, FORBIDDEN)


@pytest.mark.parametrize(
    ("component", "container"), [("webhook", "webhook"), ("controller", "controller"), ("scheduler", "extender")]
)
def test_from_the_components_of_the_control_plane(release: PodRelease, component: str, container: str) -> None:
    found = intrude(release, release.pods(component)[0], container, PLAIN_NODE)
    assert found["uid"] == NOBODY
    assert_powerless(found)
    assert (found["writes"], found["changes_node"], found["reports_node"]) == MAY[component]


@contextmanager
def stand_in(release: PodRelease, pod: dict[str, Any], container: str) -> Iterator[dict[str, Any]]:
    """A pod with all that the chart gives a pod and this one container of it, which waits instead of ending at once."""
    spec = pod["spec"]
    (found,) = (each for each in spec["containers"] + spec.get("initContainers", []) if each["name"] == container)
    name = f"in-place-of-{container}"
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": release.namespace},
        "spec": {key: value for key, value in spec.items() if key not in ("initContainers", "affinity")}
        | {
            "containers": [
                {key: value for key, value in found.items() if not key.endswith("Probe") and key != "args"}
                | {"image": GPUTILE_IMAGE, "command": WAITS}
            ],
            "terminationGracePeriodSeconds": 1,
        },
    }
    release.cluster.create(body)
    own = f"--namespace={release.namespace}"
    try:
        release.cluster.kubectl("wait", own, "--for=condition=Ready", f"pod/{name}", "--timeout=300s")
        yield body
    finally:
        release.cluster.kubectl("delete", own, f"pod/{name}")


def test_from_the_agents_init_container(release: PodRelease) -> None:
    """It may do all that root of the node may, but ends before the agent begins, and has no more of the API server."""
    agent = release.agent(GPU_NODE)
    (ended,) = agent["status"]["initContainerStatuses"]
    (begun,) = agent["status"]["containerStatuses"]
    assert ended["state"]["terminated"]["exitCode"] == 0
    assert ended["state"]["terminated"]["finishedAt"] <= begun["state"]["running"]["startedAt"]
    with stand_in(release, agent, "mounts") as place:
        found = intrude(release, place, "mounts", PLAIN_NODE)
    assert (found["uid"], found["seccomp"]) == (0, UNFILTERED)
    assert all(found[act] for act in ("mounts", "unshares", "unshares_users", "makes_devices"))
    assert found["writes"] == ["/run/gputile", "/var/lib/gputile"]
    assert (found["secrets"], found["creates_pods"]) == (FORBIDDEN, FORBIDDEN)
    assert (found["changes_node"], found["reports_node"]) == MAY["agent"][1:]


def test_from_the_agent(release: PodRelease) -> None:
    """It is root of nothing: what it writes on the host is what it serves, and of another node it says nothing.

    RBAC cannot say so; the chart's policy does, by the node that the API server knows of the token's pod.
    """
    found = intrude(release, release.agent(GPU_NODE), "agent", PLAIN_NODE)
    assert found["books_pod"] == DENIED
    assert found["uid"] == 0
    assert_powerless(found)
    assert (found["writes"], found["changes_node"], found["reports_node"]) == MAY["agent"]


def test_what_the_agents_init_container_mounts_is_seen_by_the_agent(release: PodRelease) -> None:
    """A file system for each container's file, on which nothing runs, and the library's directory."""
    agent = release.agent(GPU_NODE)["metadata"]["name"]
    own = f"--namespace={release.namespace}"
    lines = release.cluster.kubectl(
        "exec", own, agent, "--container=agent", "--", "python", "-c", "print(open('/proc/self/mountinfo').read())"
    ).splitlines()
    flags = {fields[4]: set(fields[5].split(",")) for line in lines if (fields := line.split(" "))[4:]}
    places = [path for path in flags if path.startswith("/run/gputile/containers/")]
    assert len(places) == 128
    assert all(flags[path] > {"nosuid", "nodev", "noexec"} for path in places)
    assert "noexec" not in flags["/var/lib/gputile/library"]
