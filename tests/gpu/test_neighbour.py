"""A service beside a neighbour that keeps the GPU busy, in each way to share it: prints the table of ``neighbour``."""

import tempfile
from pathlib import Path

import pytest

from tests.gpu.neighbour import QUANTA_MS, RealGpu, rows, table


@pytest.mark.requirement("G4")
def test_a_service_and_its_neighbour_both_get_on(gpu: RealGpu) -> None:
    with tempfile.TemporaryDirectory(prefix="g-") as directory:
        found = list(rows(gpu, 10.0, Path(directory)))
    print("\n" + table(found))
    assert {f"turns of {quantum} ms" for quantum in QUANTA_MS} < {row.way for row in found}
    assert all(row.p99_ms > 0 and row.fills > 0 for row in found)
