"""Who holds the Lease again goes through everything that came while nobody might act."""

import asyncio

import pytest

from gputile.controller.leadership import Leadership
from gputile.kube.errors import AnswerLost


class Lease:
    """A Lease that nobody else wants. ``answers``: whether the API server does."""

    holder, transitions = "a", 3

    def __init__(self) -> None:
        self.held, self.answers = False, True

    def valid(self) -> bool:
        return self.held

    async def acquire(self) -> bool:
        if not self.answers:
            raise AnswerLost("the API server says nothing")
        self.held = True
        return True

    renew = acquire


def test_after_a_lapse_everything_is_looked_at_again_without_a_new_list() -> None:
    begun: list[str] = []
    lease = Lease()

    async def refresh() -> None:
        begun.append("listed")

    async def main() -> None:
        leadership = Leadership(lease, refresh, lambda: begun.append("begun"))  # type: ignore[arg-type]
        await leadership._once()
        await leadership._once()
        assert begun == ["listed", "begun"]
        lease.held, lease.answers = False, False
        with pytest.raises(AnswerLost):
            await leadership._once()
        assert not leadership.active()
        lease.answers = True
        await leadership._once()
        assert leadership.active()
        assert begun == ["listed", "begun", "begun"]

    asyncio.run(main())
