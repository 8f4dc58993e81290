"""A new memory unit takes effect without a restart, as a ConfigMap volume brings it."""

from pathlib import Path

import pytest

from gputile.support.config_file import ConfigFile, read

pytestmark = pytest.mark.requirement("U9")


def swap(volume: Path, text: str) -> Path:
    """Replace the volume's content as the kubelet does: a new directory, and a link moved over the old one."""
    revision = volume / f"..{sum(1 for _ in volume.iterdir())}"
    revision.mkdir()
    (revision / "gputile.yaml").write_text(text, encoding="utf-8")
    (volume / "..data_tmp").symlink_to(revision.name)
    (volume / "..data_tmp").rename(volume / "..data")
    file = volume / "gputile.yaml"
    if not file.is_symlink():
        file.symlink_to("..data/gputile.yaml")
    return file


def opened(file: Path) -> ConfigFile:
    return ConfigFile(file, read(file))


@pytest.mark.anyio
async def test_a_swapped_volume_is_read_again(tmp_path: Path) -> None:
    live = opened(swap(tmp_path, "gpuMemoryUnit: 1GiB"))
    assert live.current.unit_mib == 1024
    swap(tmp_path, "gpuMemoryUnit: 128MiB")
    await live.look()
    assert live.current.unit_mib == 128


@pytest.mark.anyio
@pytest.mark.parametrize(
    "text",
    [
        "gpuMemoryUnit: 1MiB",
        "gpuMemoryUnit: [",
        "gpuMemoryUnits: 1GiB",
        "- a",
        "gpuMemoryUnit: 2026-13-01",
        "[" * 10**5,
    ],
    ids=range(6),
)
async def test_a_mistake_leaves_the_one_before_in_force_and_is_shown(tmp_path: Path, text: str) -> None:
    live = opened(swap(tmp_path, "gpuMemoryUnit: 1GiB"))
    swap(tmp_path, text)
    await live.look()
    assert live.current.unit_mib == 1024
    assert "stays in force" in (live.problem or "")
    swap(tmp_path, "gpuMemoryUnit: 128MiB")
    await live.look()
    assert (live.current.unit_mib, live.problem) == (128, None)


@pytest.mark.anyio
async def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    file = swap(tmp_path, "gpuMemoryUnit: 128MiB")
    live = opened(file)
    file.unlink()
    await live.look()
    assert live.current.unit_mib == 128
    assert live.problem


@pytest.mark.anyio
async def test_a_file_that_was_gone_for_a_moment_is_in_force_again(tmp_path: Path) -> None:
    file = swap(tmp_path, "gpuMemoryUnit: 128MiB")
    live = opened(file)
    await live.look()
    file.unlink()
    await live.look()
    assert "No such file" in (live.problem or "")
    file.symlink_to("..data/gputile.yaml")
    await live.look()
    assert (live.current.unit_mib, live.problem) == (128, None)
