"""A configuration file that changes while a component runs (U9, U10)."""

import asyncio
import os
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration, ConfigurationError
from gputile.kube.configfile import follow, read
from tests.fakes.apiserver import until


def write(path: Path, text: str) -> None:
    """Change the file as the kubelet changes a mounted ConfigMap: whole, by a rename."""
    beside = path.with_name(".next")
    beside.write_text(text)
    os.replace(beside, path)


def test_a_change_is_taken_in_once_and_an_invalid_one_never(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """U9: a new unit arrives without a restart; what is not valid leaves the old one in force and says why."""
    path, taken = tmp_path / "configuration.yaml", list[Configuration]()

    async def scenario() -> None:
        write(path, "gpuMemoryUnit: 1GiB")
        task = asyncio.create_task(follow(path, read(path), taken.append, every=0.001))
        await asyncio.sleep(0.02)
        assert taken == []
        write(path, "gpuMemoryUnit: 1MiB")
        await until(lambda: "the smallest valid unit is 64MiB" in caplog.text)
        write(path, "gpuMemoryUnit: [")
        await until(lambda: "not YAML" in caplog.text)
        path.unlink()
        await until(lambda: "No such file" in caplog.text)
        write(path, "gpuMemoryUnit: 128MiB")
        await until(lambda: len(taken) == 1)
        write(path, "# the same in other words\ngpuMemoryUnit: 128MiB")
        await asyncio.sleep(0.02)
        task.cancel()

    asyncio.run(scenario())
    assert [each.unit_mib for each in taken] == [128]
    assert caplog.text.count("smallest valid unit") == 1, "a complaint is logged once"


def test_the_change_made_before_the_first_look_is_not_missed(tmp_path: Path) -> None:
    path, taken = tmp_path / "configuration.yaml", list[Configuration]()
    write(path, "gpuMemoryUnit: 128MiB")

    async def scenario() -> None:
        task = asyncio.create_task(follow(path, Configuration(), taken.append, every=0.001))
        await until(lambda: len(taken) == 1)
        task.cancel()

    asyncio.run(scenario())
    assert taken[0].unit_mib == 128


def test_no_file_is_followed_where_none_is_given() -> None:
    asyncio.run(follow(None, Configuration(), lambda _: pytest.fail("nothing changed")))


def test_a_file_that_is_missing_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read(tmp_path / "none.yaml")
