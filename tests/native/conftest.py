"""Containers under the library, for the native tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.cuda import FakeGpus
from tests.native.container import Container


@pytest.fixture
def one_gpu(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """A container with ``mib`` of a GPU of 1024 MiB."""

    made: list[Container] = []

    def make(mib: int = 256, **machine: int) -> Container:
        overhead = machine.pop("overhead_mib", None)
        made.append(Container(tmp_path / "allocation", FakeGpus(tmp_path, [1024], **machine), {0: mib}, overhead))
        return made[-1]

    yield make
    for container in made:
        container.close()
