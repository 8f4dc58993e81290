"""A process belongs to the container that its cgroups name first."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.agent.status.usage import owner_in, owner_of

pytestmark = pytest.mark.requirement("B7")
POD, OTHER = "8e9b6a5c-4f0e-4a0a-9d3e-0d3c5a1b2c3d", "11111111-2222-3333-4444-555555555555"
CONTAINER = "ab" * 32
UNDERSCORED = POD.replace("-", "_")


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/"
        f"cri-containerd-{CONTAINER}.scope",
        f"/kubepods/besteffort/pod{POD}/{CONTAINER}",
        f"/../../kubepods-pod{UNDERSCORED}.slice/crio-{CONTAINER}.scope/below",
        f"/kubelet/kubepods/pod{OTHER}/{'cd' * 32}/kubepods/pod{POD}/{CONTAINER}",
    ],
    ids=["systemd", "cgroupfs", "own namespace", "nested"],
)
def test_the_forms_of_the_kubelet_and_of_runtimes(path: str) -> None:
    assert owner_in(f"0::{path}\n", {POD}) == (POD, CONTAINER)
    assert owner_in(f"12:memory:{path}\n1:name=systemd:{path}\n", {POD}) == (POD, CONTAINER)


def test_what_a_container_names_below_its_own_cgroup_does_not_count() -> None:
    path = f"/kubepods/pod{POD}/{CONTAINER}/pod{OTHER}/{'cd' * 32}"
    assert owner_in(f"0::{path}\n", {POD, OTHER}) == (POD, CONTAINER)


@pytest.mark.parametrize("text", ["", "0::/\n", "0::/system.slice/sshd.service\n", f"0::/kubepods/pod{OTHER}/x\n"])
def test_whoever_is_in_no_known_pod_is_nobodys(text: str) -> None:
    assert owner_in(text, {POD}) is None


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert owner_in(text, {POD}) is None


def test_a_process_is_looked_up(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_bytes(b"\xff\n0::/kubepods/pod" + POD.encode() + b"/x\n")
    assert owner_of(77, {POD}, tmp_path) == (POD, "")
    assert owner_of(78, {POD}, tmp_path) is None
