"""What is written is compared with what an API server makes of it."""

import pytest

from gputile.tools.simulator.updates.differences import changed_paths

pytestmark = pytest.mark.requirement("B4")


@pytest.mark.parametrize(
    ("written", "stored", "same"),
    [
        ("1n", "1m", True),
        ("1000u", "1m", True),
        ("1001u", "2m", True),
        ("1001u", "1m", False),
        ("2m", "1m", False),
        ("0.1", "100m", True),
        (1, "1", True),
    ],
)
def test_amounts_are_stored_as_whole_thousandths(written: str | int, stored: str, *, same: bool) -> None:
    """An API server rounds them up."""
    found = list(changed_paths({"requests": {"cpu": written}}, {"requests": {"cpu": stored}}))
    assert found == ([] if same else [("requests", "cpu")])
