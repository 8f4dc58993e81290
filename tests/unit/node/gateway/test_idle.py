"""A node without GPUs, until it has one."""

import os

import pytest

from gputile.node.gateway.idle import Leaving
from tests.localcluster.processtree import children


@pytest.mark.requirement("U11")
def test_what_removes_an_agents_words_is_over_before_the_agent_speaks() -> None:
    """One that the API server holds up would remove what the agent has said since."""
    leaving = Leaving(["/bin/sleep", "600"])
    before = set(children(os.getpid()))
    leaving.look()
    (begun,) = set(children(os.getpid())) - before
    leaving.look()
    assert begun in children(os.getpid())
    leaving.end()
    assert begun not in children(os.getpid())
    with pytest.raises(ChildProcessError):
        os.waitpid(begun, os.WNOHANG)
    leaving.end()
