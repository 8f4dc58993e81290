"""The measurement of a service beside a busy neighbour works, on a simulated GPU."""

import tempfile
from pathlib import Path

from tests.fakes.cuda import FakeGpus
from tests.gpu.neighbour import ALONE, QUANTA_MS, SIMULATED_BYTES_PER_US, rows, table


def test_each_way_gives_a_row_with_work_of_both() -> None:
    with tempfile.TemporaryDirectory(prefix="g-") as directory:
        gpus = FakeGpus(Path(directory), copy_bytes_per_us=SIMULATED_BYTES_PER_US)
        found = list(rows(gpus, 0.5, Path(directory)))
        busy = gpus.gpus()[0].busy_ns
    assert [row.way for row in found] == [ALONE, "driver", *(f"turns of {quantum} ms" for quantum in QUANTA_MS)]
    assert all(0 < row.median_ms <= row.p99_ms and row.fills > 0 for row in found)
    assert busy > 0
    assert table(found).count("\n") == len(found)
