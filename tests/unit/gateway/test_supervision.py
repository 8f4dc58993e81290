"""What an agent has left does not stay as a zombie."""

import subprocess
import sys

ORPHANS = """
import os, time
from pathlib import Path
from gputile.gateway.supervision import reap_orphans

def zombies():
    return [pid for pid in map(int, Path("/proc/self/task/%d/children" % os.getpid()).read_text().split())
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"]

reap_orphans()
gone = [os.spawnlp(os.P_NOWAIT, "true", "true") for _ in range(3)]
stays = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "60")
while sorted(zombies()) != sorted(gone):
    time.sleep(0.01)
reap_orphans()
assert zombies() == []
os.kill(stays, 9)
"""


def test_those_that_have_ended_are_reaped_and_the_others_left_alone() -> None:
    subprocess.run([sys.executable, "-c", ORPHANS], check=True, timeout=30)
