"""A process that is killed in the midst of its work on the container's account leaves it whole."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.container import Container, program


@pytest.mark.requirement("M4")
@pytest.mark.parametrize("neighbour", ["0", "1"])
@pytest.mark.parametrize(("how", "least"), [("calls", 40), ("changes", 6)])
def test_a_process_is_killed_at_each_point(
    one_gpu: Callable[..., Container], tmp_path: Path, how: str, least: int, neighbour: str
) -> None:
    """Around each system call, and after each instruction that changes the file: the next process finds all there is.

    What others hold counts, what the dead held does not, no lock and no slot is lost.
    """
    killed = program("killed", "-O2", with_library=True)
    points = one_gpu().run([killed, tmp_path / "account", how, neighbour], LD_PRELOAD="")
    assert int(points) >= least
