"""A new memory unit takes effect without a restart, as a ConfigMap volume brings it."""

import asyncio
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import ConfigurationError
from gputile.controlplane.webhook.config_reload import ConfigReload

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


def test_a_swapped_volume_is_read_again(tmp_path: Path) -> None:
    live = ConfigReload(swap(tmp_path, "gpuMemoryUnit: 1GiB"))
    assert live.current.unit_mib == 1024
    swap(tmp_path, "gpuMemoryUnit: 128MiB")
    asyncio.run(live.once())
    assert live.current.unit_mib == 128


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
def test_a_mistake_leaves_the_one_before_in_force_and_is_shown(tmp_path: Path, text: str) -> None:
    live = ConfigReload(swap(tmp_path, "gpuMemoryUnit: 1GiB"))
    swap(tmp_path, text)
    asyncio.run(live.once())
    assert live.current.unit_mib == 1024
    assert "stays in force" in live.problem
    swap(tmp_path, "gpuMemoryUnit: 128MiB")
    asyncio.run(live.once())
    assert (live.current.unit_mib, live.problem) == (128, "")


def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    file = swap(tmp_path, "gpuMemoryUnit: 128MiB")
    live = ConfigReload(file)
    file.unlink()
    asyncio.run(live.once())
    assert live.current.unit_mib == 128
    assert live.problem


def test_it_does_not_start_on_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the smallest valid unit is 64MiB"):
        ConfigReload(swap(tmp_path, "gpuMemoryUnit: 1MiB"))
    with pytest.raises(ConfigurationError, match="No such file"):
        ConfigReload(tmp_path / "nothing")


def test_without_a_file_the_defaults_hold() -> None:
    live = ConfigReload(None)
    asyncio.run(live.once())
    assert live.current.unit_mib == 1024
