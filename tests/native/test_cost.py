"""What the library costs a call, as a ratio within one run; docs/concepts/isolation.md has the figures."""

from collections.abc import Callable

import pytest

from tests.native.container import Container, program

pytestmark = pytest.mark.alone


def test_the_cost_of_calls(one_gpu: Callable[..., Container]) -> None:
    """A launch pays for no lock and no system call, an allocation for one lock: a simulated driver is that fast."""
    container = one_gpu(256)

    def measure(**variables: str) -> dict[str, float]:
        lines = container.run([program("cost")], **variables).splitlines()
        return {name: float(ns) for name, ns in (line.rsplit(" ", 1) for line in lines)}

    without, with_library = measure(LD_PRELOAD=""), measure()
    assert with_library["cuLaunchKernel"] < 6 * without["cuLaunchKernel"]
    assert with_library["cuMemAlloc+cuMemFree"] < 10 * without["cuMemAlloc+cuMemFree"]
