"""Who holds the Lease again goes through everything that came while nobody might act."""

import asyncio

import pytest

from gputile.controlplane.controller.leadership import Leadership
from gputile.kube.errors import AnswerLost


class Lease:
    """A Lease that nobody else wants. ``answers``: whether the API server does."""

    holder = "a"

    def __init__(self) -> None:
        self.held, self.answers = False, True
        self.term = ("uid-1", 3)

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


def test_a_lease_that_was_deleted_and_made_anew_is_another_one() -> None:
    """Its count of holders begins anew, and may come to the same number: another replica may have acted meanwhile."""
    listed: list[str] = []
    lease = Lease()

    async def refresh() -> None:
        listed.append(lease.term[0])

    async def main() -> None:
        leadership = Leadership(lease, refresh, lambda: None)  # type: ignore[arg-type]
        await leadership._once()
        lease.held, lease.term = False, ("uid-2", 3)
        assert not leadership.active()
        await leadership._once()
        assert leadership.active()
        assert listed == ["uid-1", "uid-2"]

    asyncio.run(main())
