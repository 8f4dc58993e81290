"""Pods in a user namespace of their own (``hostUsers: false``): the same limits, and nothing of other containers."""

import json
from typing import Any

import pytest

from tests.e2e.pods.cluster import GPUTILE_IMAGE
from tests.e2e.pods.release import PodRelease
from tests.e2e.pods.test_rights import NOBODY, WAITS
from tests.e2e.pods.workload import said_by, sample_pod, share_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.requirement("B2")]
OWN = ["/etc/gputile/usage"]
# Runs in a container, and prints what is there of gputile's files, and which of them can be written.
LOOKS = """
import json, os
def can(path):
    try:
        os.close(os.open(path, os.O_RDWR))
        return True
    except OSError:
        return False
mounts = [line.split(" ")[4] for line in open("/proc/self/mountinfo")]
ours = [path for path in mounts if "gputile" in path or "preload" in path]
usage = os.stat("/etc/gputile/usage")
print(json.dumps({
    "user": os.getuid(),
    "host_user": int(open("/proc/self/uid_map").read().split()[1]),
    "ours": ours,
    "writable": [path for path in ours if can(path)],
    "file": [usage.st_dev, usage.st_ino],
    "loaded": "libgputile-cuda.so" in open("/proc/self/maps").read(),
    "of_the_host": [path for path in ("/run/gputile", "/var/lib/gputile", "/var/lib/kubelet") if os.path.exists(path)],
}))
"""


def with_users(pod: dict[str, Any], user: int, host: bool) -> dict[str, Any]:
    """Give a pod a user, and a user namespace of its own or the host's."""
    pod["spec"] |= {"hostUsers": host, "securityContext": {"runAsUser": user, "runAsGroup": user}}
    return pod


def looking_pod(name: str, user: int, host: bool) -> dict[str, Any]:
    """Return a pod on a share whose container can look about."""
    pod = with_users(sample_pod(name, 8), user, host)
    pod["spec"]["containers"][0] |= {"image": GPUTILE_IMAGE, "command": WAITS}
    return pod


def test_limits_hold_in_a_user_namespace(release: PodRelease) -> None:
    cluster = release.cluster
    own, beside = sample_pod("own", 16), sample_pod("host", 8)
    cluster.create(with_users(own, NOBODY, host=False), with_users(beside, NOBODY, host=True))
    assert said_by(cluster, "own") == share_of(2048)
    assert said_by(cluster, "host") == share_of(1024)
    used = {"own": 1024, "host": 512}
    cluster.wait(lambda: release.pods_used() == used, "the agent to read what they use")


@pytest.mark.parametrize("user", [0, NOBODY])
def test_a_container_has_its_own_file_alone(release: PodRelease, user: int) -> None:
    cluster = release.cluster
    names = {"first": False, "second": False, "third": True}
    cluster.create(*(looking_pod(name, user, host) for name, host in names.items()))
    cluster.kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in names), "--timeout=300s")
    found = {name: json.loads(cluster.run_in("default", name, "python", "-c", LOOKS)) for name in names}
    assert len({each["host_user"] for each in found.values()}) == 3
    assert found["third"]["host_user"] == 0 < min(found["first"]["host_user"], found["second"]["host_user"])
    assert len({tuple(each["file"]) for each in found.values()}) == 3
    for each in found.values():
        assert (each["user"], each["loaded"]) == (user, True)
        assert each["writable"] == OWN
        assert each["of_the_host"] == []
        assert set(each["ours"]) > {"/etc/ld.so.preload", "/etc/gputile/libgputile-cuda.so", *OWN}
