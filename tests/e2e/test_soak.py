"""A short soak of the whole system, so that ``make soak PARTS=system`` runs when it is wanted."""

from pathlib import Path

import pytest

from tests.localcluster.binaries import skip_or_fail
from tests.localcluster.gomodule import ComponentMissing
from tests.soak.system.report import write
from tests.soak.system.run import Options, Run


@pytest.mark.requirement("B1", "B2", "G1", "M13")
@pytest.mark.timeout(900)
def test_pods_and_faults_for_half_a_minute_break_no_promise(
    control_plane_programs: dict[str, Path], node_programs: dict[str, Path], tmp_path: Path
) -> None:
    """What docs/concepts/reliability.md promises, while components die and are cut off."""
    run = Run(Options(minutes=0.6, pods=150, seed=11, fault_every_s=4.0, report=tmp_path, real_every=20), print)
    try:
        run.execute()
    except ComponentMissing as missing:
        skip_or_fail(missing)
    page = write(run, tmp_path, interrupted=False).read_text()
    assert not run.findings.broken(), page
    assert run.findings.counts["pods in all"] > 0, page
    assert run.findings.counts["containers compared on the real node"] > 0, page
    assert run.done, page
