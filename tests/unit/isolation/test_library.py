"""The library's place on a node, and the mounts of a container."""

from pathlib import Path

import pytest

from gputile.agent.answer import Limits
from gputile.agent.enforcement import Enforcement
from gputile.agent.store import Store
from gputile.api.wellknown import Mode
from gputile.device.allocation import CardShare
from gputile.gateway.claim import Claim
from gputile.isolation import library as place
from gputile.isolation.library import NAME, LibraryMissing, install, library_path
from gputile.isolation.limits import USAGE_BYTES


def test_each_version_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version goes beside the old one: containers that run keep what they have."""
    files = [tmp_path / "one.so", tmp_path / "two.so"]
    for path in files:
        path.write_text(path.name)
    installed = []
    for path in [*files, files[0]]:
        monkeypatch.setattr(place, "library_path", lambda path=path: path)
        installed.append(install(tmp_path / "library"))
    assert installed[0] == installed[2] != installed[1]
    assert [found.library.read_text() for found in installed] == ["one.so", "two.so", "one.so"]
    assert {found.preload.read_text() for found in installed} == {f"/etc/gputile/{NAME}\n"}


def test_without_a_compiler_nothing_starts_unisolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M4, G5: an install without the library starts no container in an isolated mode, and says why; others work."""

    def missing() -> Path:
        raise LibraryMissing("this gputile has no library")

    monkeypatch.setattr(place, "library_path", missing)
    enforcement = Enforcement(tmp_path, Path("/host"))
    for mode in Mode:
        isolated = mode in (Mode.CGPU, Mode.CORE_MEM)
        assert enforcement.problem(mode) == ("this gputile has no library" if isolated else "")
        assert enforcement.mounts(mode, Path("/host/allocations/a")) == []


def test_an_isolated_container_gets_the_library(tmp_path: Path) -> None:
    """M4, M5: the library and what loads it read-only, the place to count writable, all under the host's names."""
    enforcement = Enforcement(tmp_path, Path("/host/state"))
    for mode in (Mode.CGPU, Mode.CORE_MEM):
        mounts = {m.container_path: m for m in enforcement.mounts(mode, Path("/host/state/allocations/a"))}
        assert {path: m.read_only for path, m in mounts.items()} == {
            f"/etc/gputile/{NAME}": True,
            "/etc/ld.so.preload": True,
            "/etc/gputile/usage": False,
        }
        assert mounts["/etc/gputile/usage"].host_path == "/host/state/allocations/a/usage"
        on_host = Path(mounts[f"/etc/gputile/{NAME}"].host_path).relative_to("/host/state")
        assert (tmp_path / on_host).read_bytes() == library_path().read_bytes()
    assert enforcement.mounts(Mode.SHARE, Path("/host/state/allocations/a")) == []


def test_the_files_of_an_allocation(tmp_path: Path) -> None:
    """M4, M5: limits that the library reads, and a place to count that any user of the container can write."""
    claim = Claim(tmp_path / "owner", "this agent")
    claim.take()
    store = Store(tmp_path, claim)
    limits = Limits("ns", "pod", "uid", "main", "core_mem", 128, (CardShare("GPU-1", 0, 4096, 20),))
    path = store.prepare("uid-main")
    (path / "usage").write_bytes(b"\xff" * USAGE_BYTES)
    store.write_limits("uid-main", limits)
    lines = (path / "limits").read_text().splitlines()
    assert lines[0] == "gputile 1"
    assert "card GPU-1 4096 20" in lines
    assert lines[-1] == "end"
    assert (path / "usage").read_bytes() == bytes(USAGE_BYTES)  # a container that is restarted begins anew
    assert (path / "usage").stat().st_mode & 0o777 == 0o666
    assert (path / "limits").stat().st_mode & 0o777 == 0o644
