"""A configuration file that changes while a component runs."""

import asyncio
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.support.config_file import ConfigFile, read
from tests.fakes.apiserver import until

pytestmark = pytest.mark.requirement("U9", "U10")


def write(path: Path, text: str) -> None:
    """Change the file as the kubelet changes a mounted ConfigMap: whole, by a rename."""
    beside = path.with_name(".next")
    beside.write_text(text)
    beside.replace(path)


@pytest.mark.anyio
@pytest.mark.requirement("U9")
async def test_a_change_is_taken_in_once_and_an_invalid_one_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new unit arrives without a restart; what is not valid leaves the old one in force and says why."""
    path, taken = tmp_path / "configuration.yaml", list[Configuration]()

    write(path, "gpuMemoryUnit: 1GiB")
    task = asyncio.create_task(ConfigFile(path, read(path), taken.append).run(0.001))
    await asyncio.sleep(0.02)
    assert taken == []
    write(path, "gpuMemoryUnit: 1MiB")
    await until(lambda: "the smallest valid unit is 64MiB" in caplog.text)
    write(path, "gpuMemoryUnit: [")
    await until(lambda: "did not find expected node content" in caplog.text)
    path.unlink()
    await until(lambda: "No such file" in caplog.text)
    write(path, "gpuMemoryUnit: 128MiB")
    await until(lambda: len(taken) == 1)
    write(path, "# the same in other words\ngpuMemoryUnit: 128MiB")
    await asyncio.sleep(0.02)
    task.cancel()
    assert [each.unit_mib for each in taken] == [128]
    assert caplog.text.count("smallest valid unit") == 1, "a complaint is logged once"


@pytest.mark.anyio
@pytest.mark.requirement("U9")
@pytest.mark.parametrize("text", ["", "\n", "# gpuMemoryUnit: 128MiB\n", "---\n"])
async def test_an_emptied_file_puts_no_defaults_in_force(tmp_path: Path, text: str) -> None:
    """A key of the ConfigMap that a template left out would change the unit of all nodes."""
    path = tmp_path / "configuration.yaml"
    write(path, "gpuMemoryUnit: 128MiB")
    file = ConfigFile(path, read(path))
    write(path, text)
    await file.reload()
    assert file.current.unit_mib == 128
    assert file.problem is not None
    assert "it is empty" in file.problem
