"""Which of two gateways serves the node, also while the file that tells it is not there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gputile.node.gateway.node_lock import NodeLock

pytestmark = pytest.mark.requirement("B1")


def _put_away(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("lose", [Path.unlink, _put_away], ids=["removed", "a directory"])
def test_the_older_one_does_not_serve_again_because_the_file_is_lost(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    file = tmp_path / "owner"
    older, younger = NodeLock(file, "older"), NodeLock(file, "younger")
    assert older.mine, "nobody has claimed it"
    older.take()
    assert not younger.mine
    younger.take()
    assert (older.mine, younger.mine) == (False, True)
    lose(file)
    assert (older.mine, younger.mine) == (False, True)


def test_a_gateway_that_is_alone_goes_on_without_the_file(tmp_path: Path) -> None:
    lock = NodeLock(tmp_path / "owner", "alone")
    lock.take()
    (tmp_path / "owner").unlink()
    assert lock.mine
