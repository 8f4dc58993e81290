"""What the library is made of: what it needs, what it knows, and that sanitizers find nothing in it."""

import ctypes
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hatch_build import SOURCES

from gputile.node.arbiter.accounts import WHOLE, Share
from gputile.node.isolation.library import GpuLimit, encode_limits
from tests.integration.arbiter.process import ArbiterProcess, write_share
from tests.native.container import Container, library, program
from tests.native.sanitizing import without_randomization

SANITIZERS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}


def dynamic_symbols() -> list[str]:
    return subprocess.run(["objdump", "-T", library()], capture_output=True, text=True, check=True).stdout.splitlines()


def test_runs_on_glibc_2_17() -> None:
    """Any glibc from 2.17 on will do: no symbol of a newer one is needed, and no other library."""
    versions = {
        tuple(map(int, m[1].split(".")))
        for line in dynamic_symbols()
        for m in [re.search(r"GLIBC_([\d.]+)", line)]
        if m
    }
    assert versions
    assert max(versions) <= (2, 17)
    needed = subprocess.run(["objdump", "-p", library()], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"NEEDED\s+(\S+)", needed)
    assert [name for name in libraries if not name.startswith("ld-linux")] == ["libc.so.6"]


def test_exports_nothing_but_what_it_replaces() -> None:
    """A name of ours in every program of a container would be in somebody's way."""
    exported = {line.split()[-1] for line in dynamic_symbols() if " .text" in line}
    own = {name for name in exported if not name.startswith(("cu", "nvml"))}
    assert own == {"dlsym", "dlvsym", "gputile_knows"}


def table(name: str) -> list[list[str]]:
    rows = re.findall(r"^X\((.*)\)$", (SOURCES / "hooks" / name).read_text(), re.MULTILINE)
    return [row.split(", ") for row in rows]


def test_the_tables_name_known_functions() -> None:
    """Each function that is replaced is of the public API, and the list of that is sorted for the search in it."""
    known = re.findall(r'^"(\w+)",$', (SOURCES / "hooks" / "known.def").read_text(), re.MULTILINE)
    assert known == sorted(set(known))
    replaced = {row[1] for row in table("memory.def") + table("submit.def")}
    unsuffixed = {re.sub(r"_pt[ds][sz]$", "", symbol) for symbol in replaced}
    assert unsuffixed - set(known) == set()
    knows = ctypes.CDLL(str(library())).gputile_knows
    assert all(knows(name.encode()) for name in known)
    assert not any(knows(name) for name in (b"", b"cu", b"cuMemAllocQuantum", b"zzz", b"cuArray3DCreat"))


@pytest.mark.requirement("M4")
def test_what_allocates_is_replaced() -> None:
    """Every function of the public API whose name says that it makes memory is counted, or known to make none."""
    known = re.findall(r'^"(\w+)",$', (SOURCES / "hooks" / "known.def").read_text(), re.MULTILINE)
    replaced = {row[1] for row in table("memory.def")}
    maker = re.compile(
        r"cu(?:Mem(?:Alloc|Create|Map)|Array.*Create|Mipmapped.*Create|.*AllocNode|Import|.*MemPoolCreate)"
    )
    makes_none = {
        "cuMemAllocHost",  # host memory
        "cuMemAllocHost_v2",
        "cuGraphAddMemAllocNode",  # counted when the graph is launched
        "cuGraphMemAllocNodeGetParams",
        "cuImportExternalSemaphore",
    }
    assert {name for name in known if maker.match(name)} - replaced == makes_none


@pytest.mark.parametrize("name", SANITIZERS)
def test_sanitizers_find_nothing(one_gpu: Callable[..., Container], name: str) -> None:
    """Threads that allocate in every way, with the library's sources in the program itself."""
    container = one_gpu(48)
    sanitized = program("stress", SANITIZERS[name], "-O0", "-fno-sanitize-recover=all", with_library=True)
    environment = {"LD_PRELOAD": "", "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
    out = container.run([*without_randomization(), sanitized, "5", "4", "300"], **environment)
    assert int(out.split()[1]) > 0, "nothing was refused: the limit is not in force"


@pytest.mark.parametrize("name", SANITIZERS)
def test_sanitizers_find_nothing_around_forks(one_gpu: Callable[..., Container], name: str) -> None:
    """Threads inside the library while children are made; and children that use the library themselves.

    Not both at once: the sanitizers' own locks stay taken in a child of a program with threads (GCC 12, which hangs so
    without gputile too). ``test_fork`` has both, without sanitizers.
    """
    sanitized = program("forks", SANITIZERS[name], "-O0", "-fno-sanitize-recover=all", with_library=True)
    options = {"TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0", "ASAN_OPTIONS": "detect_leaks=0"}
    container = one_gpu(256)
    assert container.run([*without_randomization(), sanitized, "4", "15", "exec"], LD_PRELOAD="", **options) == "0\n"
    assert container.run([*without_randomization(), sanitized, "0", "15"], LD_PRELOAD="", **options) == "0\n"


@pytest.mark.parametrize("name", SANITIZERS)
@pytest.mark.parametrize("arbiter", [True, False])
def test_sanitizers_find_nothing_where_no_thread_can_be_started(
    one_gpu: Callable[..., Container], tmp_path: Path, name: str, arbiter: bool
) -> None:
    """The program itself waits for each of its submissions, and for the turns of its container."""
    container = one_gpu(256)
    gpu = container.gpus.uuids[0]
    shares = {gpu: Share(50, WHOLE // 2, WHOLE // 2)}
    sanitized = program("threadless", SANITIZERS[name], "-O0", "-fno-sanitize-recover=all", with_library=True)
    options = {"LD_PRELOAD": "", "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0"}
    with ExitStack() as stack:
        if arbiter:
            (path,) = stack.enter_context(ArbiterProcess(tmp_path)).assign({"allocation": shares})
        else:
            write_share(tmp_path, 30, shares)
            path = tmp_path / "time.sock"
        container.limits.write_bytes(encode_limits([GpuLimit(gpu, 256)], turn=str(path)))
        for how in ("seccomp", "free"):
            assert int(container.run([*without_randomization(), sanitized, how, "1.5"], **options)) > 0


def test_two_libraries_in_one_process(one_gpu: Callable[..., Container], tmp_path: Path) -> None:
    """An image that preloads a library of its own beside the agent's: memory counts once, and the limit holds."""
    other = tmp_path / "other.so"
    other.write_bytes(library().read_bytes())
    code = "cuda = Cuda(); print(cuda.linear(100), cuda.linear(100), cuda.info()[0], cuda.linear(100))"
    for preloaded in (f"{library()} {other}", f"{other} {library()}"):
        container = one_gpu(256)
        assert container.python(code, LD_PRELOAD=preloaded) == "0 0 56 2\n"
        assert container.gpus.gpus()[0].peak == 200 << 20


def test_a_newer_library_beside_an_older_one(one_gpu: Callable[..., Container], tmp_path: Path) -> None:
    """A process keeps the library that it started with when the file is replaced, and both count in one file."""
    copy = tmp_path / library().name
    copy.write_bytes(library().read_bytes())
    container = one_gpu(256)
    code = """
cuda = Cuda()
print(cuda.linear(100), flush=True)
input()
print(cuda.info()[0])
"""
    process = container.begin(code, LD_PRELOAD=str(copy))
    assert process.line() == "0"
    newer = copy.with_suffix(".new")
    newer.write_bytes(library().read_bytes())
    newer.replace(copy)
    assert container.python("cuda = Cuda(); print(cuda.info()[0], cuda.linear(100))", LD_PRELOAD=str(copy)) == "156 0\n"
    out, _ = process.communicate("\n")
    assert out == "156\n"
