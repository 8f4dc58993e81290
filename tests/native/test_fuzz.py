"""Whatever bytes the library is given to read, it reads none beyond them and believes nothing impossible."""

import struct
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.native.container import program
from tests.native.fuzzing import SEEDS, WORDS
from tests.native.sanitizing import without_randomization

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def _inputs(target: str) -> st.SearchStrategy[bytes]:
    """Any bytes; the target's words in any order; a good input with a part that is something else."""
    seed = st.sampled_from(SEEDS[target])
    cut = st.tuples(seed, st.integers(0, 200), st.integers(0, 40), st.binary(max_size=40))
    changed = cut.map(lambda drawn: drawn[0][: drawn[1]] + drawn[3] + drawn[0][drawn[1] + drawn[2] :])
    words = st.lists(st.sampled_from(WORDS.get(target, (b"\0", b"\1", b"\xff"))) | st.binary(max_size=9), max_size=40)
    return seed | changed | words.map(b"".join) | st.binary(max_size=3000)


@pytest.mark.requirement("M4", "M5")
@pytest.mark.parametrize("target", SEEDS)
@settings(
    max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data())
def test_no_bytes_do_harm(target: str, data: st.DataObject) -> None:
    """12 times 20 inputs a target, under sanitizers that see each byte read beyond an input."""
    fuzzer = program(
        "fuzz", *SANITIZERS, "-DSTANDALONE", f"-DTARGET=fuzz_{target}", with_library=True, with_driver=False
    )
    inputs = data.draw(st.lists(_inputs(target), min_size=20, max_size=20))
    told = b"".join(struct.pack("<I", len(each)) + each for each in inputs)
    done = subprocess.run([*without_randomization(), fuzzer], input=told, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
