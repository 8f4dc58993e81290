"""The list of a driver's functions that the library refuses, read from its file."""

import _ctypes
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.node.isolation.driver_symbols import NotADriver, functions, unknown
from tests.fakes.cuda import library


@pytest.mark.requirement("M4")
def test_a_driver_of_tomorrow() -> None:
    """A function that the library does not know is named before a container stumbles over it."""
    assert unknown(library()) == ["cuMemAllocQuantum"]
    found = functions(library())
    assert {"cuInit", "cuMemAlloc_v2", "cuGraphLaunch_ptsz"} < set(found)
    assert found == sorted(found)
    assert "malloc" not in found


@given(content=st.binary(max_size=400) | st.binary(max_size=100).map(lambda rest: b"\x7fELF\x02\x01" + rest))
def test_other_files_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """What is no library of functions of the driver is no proof that all of them are known."""
    path = Path(tmp_path_factory.mktemp("driver"), "libcuda.so.1")
    path.write_bytes(content)
    with pytest.raises(NotADriver):
        functions(path)


def test_another_library_and_a_directory_are_no_driver(tmp_path: Path) -> None:
    with pytest.raises(NotADriver, match=r"exports no function of the CUDA driver: name the driver's libcuda\.so\.1"):
        functions(Path(_ctypes.__file__))
    with pytest.raises(NotADriver, match="cannot be read: Is a directory"):
        functions(tmp_path)
