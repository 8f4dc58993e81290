"""What a container of an isolated mode is given on a real kubelet, containerd and runc, and what it can do with it."""

import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputile.api.well_known import GPU_MEMORY, MODE_LABEL
from gputile.node.agent.files.node_mounts import PLACE_BYTES
from gputile.node.isolation.library import USAGE
from tests.e2e.node import GpuNode, gpu_node, probe_pod, runs
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.images import LEAVE
from tests.localcluster.nosuid import MIB

NOBODY = 65534
WHO = Path("/usr/bin/id")


@pytest.fixture(scope="module")
def isolated(control_plane: ControlPlane, node_programs: dict[str, Path]) -> Iterator[GpuNode]:
    """A node with eight GPUs of 80 GiB, in mode cgpu."""
    with gpu_node(control_plane, node_programs, "isolated", {MODE_LABEL: "cgpu"}, places=8) as here:
        here.plane.wait(lambda: here.allocatable().get(GPU_MEMORY) == "640", "the node to offer its GPUs")
        yield here


def hostile(name: str) -> dict[str, object]:
    """Return a pod that does to what it can write on its node what root in a container can."""
    pod = probe_pod(name, {GPU_MEMORY: 2})
    pod["spec"]["containers"][0]["command"] = list(LEAVE)
    return pod


def as_nobody(path: Path) -> str:
    """Run what a file holds as a user without rights who has it open, as by a way past the directories' modes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        line = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"/proc/self/fd/{fd}", "-u"]
        return subprocess.run(line, pass_fds=(fd,), capture_output=True, text=True, check=False).stdout.strip()
    finally:
        os.close(fd)


@pytest.mark.requirement("M4", "G5")
def test_root_in_a_container_leaves_nothing_on_the_node(isolated: GpuNode, namespace: str, tmp_path: Path) -> None:
    """No program that runs as root for others, no way to others' files and sockets, no disk filled."""
    before = shutil.disk_usage(isolated.node.directory).used
    isolated.create(namespace, hostile("hostile"))
    (pod,) = isolated.wait_running(1, namespace)
    said = isolated.said(pod, "main")
    assert "PROBE_CHMOD" not in said
    name = f"{pod['metadata']['uid']}-main"
    usage, allocation = isolated.node.usage / USAGE / name, isolated.node.directory / "state" / "allocations" / name
    # What it adds to the file ends at the file's own file system.
    assert said["PROBE_ENDED"] == os.strerror(errno.ENOSPC)
    assert usage.stat().st_size <= PLACE_BYTES
    assert int(said["PROBE_ATTRIBUTES"]) < 8 << 10
    # What is below is real: the same program, setuid where that counts, does run as root.
    proof = isolated.node.directory / "proof"
    proof.write_bytes(WHO.read_bytes())
    proof.chmod(0o4755)
    assert as_nobody(proof) == "0"
    usage.write_bytes(WHO.read_bytes())  # as root of the container could
    assert usage.stat().st_mode & stat.S_ISUID
    assert as_nobody(usage) in ("", str(NOBODY))  # mounted noexec, or nosuid alone
    assert shutil.disk_usage(isolated.node.directory).used - before < MIB << 20
    for path in (usage, allocation / "time.sock", allocation / "limits"):
        isolated.plane.wait(path.exists, f"{path.name} to be there")
        reached = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "test", "-e", str(path)]
        assert subprocess.run(reached, check=False).returncode == 1, f"{path} can be reached by others"
    # Its neighbours start all the same.
    isolated.create(namespace, probe_pod("neighbour", {GPU_MEMORY: 2}))
    isolated.wait_running(2, namespace)


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("user", [{"runAsUser": 1000, "runAsNonRoot": True}, {}])
def test_any_user_of_a_container_has_what_is_its_own(
    isolated: GpuNode, namespace: str, user: dict[str, object]
) -> None:
    """The directories that are closed on the node are not on the container's way; an image without /etc will do."""
    isolated.create(namespace, probe_pod("any", {GPU_MEMORY: 2}, securityContext=user))
    (pod,) = isolated.wait_running(1, namespace)
    assert '"mib":2048' in isolated.said(pod, "main")["PROBE_LIMITS"]


@pytest.mark.requirement("M4")
def test_a_container_that_would_not_be_isolated_does_not_start(isolated: GpuNode, namespace: str) -> None:
    """Its library was taken away, and cannot be put back for a while; then it can."""
    library = isolated.node.directory / "state" / "library"
    isolated.create(namespace, probe_pod("first", {GPU_MEMORY: 2}))
    isolated.wait_running(1, namespace)
    shutil.rmtree(library)
    library.write_text("in the way")
    try:
        isolated.create(namespace, probe_pod("second", {GPU_MEMORY: 2}))
        isolated.plane.wait(lambda: "does not start" in events(isolated, namespace), "the event that says why")
        assert not any(runs(pod) for pod in isolated.pods(namespace) if pod["metadata"]["name"] == "second")
    finally:
        library.unlink()
    isolated.wait_running(2, namespace)
    (version,) = library.iterdir()
    assert all(path.is_file() for path in version.iterdir())


def events(here: GpuNode, namespace: str) -> str:
    found = here.plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return json.dumps([event.get("message", "") for event in found])
