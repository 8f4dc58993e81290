"""Programs built from Go modules, once, into a cache, and files of such modules: no other registry here has them."""

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.localcluster.toolchain import ComponentMissing, go_program

PROGRESS_SECONDS = 20.0


def cache_directory() -> Path:
    """Return where built programs are kept, over all versions."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gputile" / "controlplane"


def built(
    module: Path,
    version: str,
    packages: Mapping[str, str],
    *,
    stamps: Sequence[str] = (),
    tags: str = "",
    with_c: bool = False,
) -> dict[str, Path]:
    """Return the path of each program, building those that the cache lacks.

    ``module`` is the directory of a Go module, ``packages`` the package of each program, ``version`` what the cache's
    directory is named after, ``stamps`` values for the linker's ``-X``, ``tags`` the build tags. Programs ``with_c``
    need a C compiler.

    Raises:
        ComponentMissing: one of them cannot be built; says which, and why.
    """
    digest = hashlib.sha256((module / "go.mod").read_bytes() + (module / "go.sum").read_bytes()).hexdigest()
    directory = cache_directory() / f"{version}-{platform.machine()}-{digest[:12]}"
    paths = {name: directory / name for name in packages}
    if not all(path.exists() for path in paths.values()):
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory / ".lock"):
            lacking = {name: package for name, package in packages.items() if not paths[name].exists()}
            if lacking:
                flags = [f"-ldflags={' '.join(['-s -w', *(f'-X {stamp}' for stamp in stamps)])}", f"-tags={tags}"]
                _build(module, version, lacking, directory, flags, with_c)
    return paths


def module_directory(module: Path, requirement: str) -> Path:
    """Return the directory of the files of a module that the Go module in ``module`` requires, having it downloaded.

    Raises:
        ComponentMissing: it cannot be had, or is not what go.sum says; says why.
    """
    command = [str(go_program(cache_directory())), "mod", "download", "-json", requirement]
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
            _tell("another run is building these programs; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(
    module: Path, version: str, packages: Mapping[str, str], directory: Path, flags: Sequence[str], with_c: bool
) -> None:
    """Build into a directory of its own and rename, so that a broken-off build leaves no half program."""
    names = ", ".join(packages)
    go = go_program(cache_directory())
    _tell(f"building {names} {version} into {directory}; minutes the first time, nothing afterwards")
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch, tempfile.TemporaryFile("w+") as log:
        command = [str(go), "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", *flags]
        command += ["-o", scratch + "/", *packages.values()]
        settings = {"CGO_ENABLED": str(int(with_c)), "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
        environment = {**os.environ, **settings}
        with subprocess.Popen(command, cwd=module, stdout=log, stderr=log, env=environment) as build:
            try:
                _watch(build, log)
            except BaseException:
                build.terminate()
                raise
        if build.returncode != 0:
            log.seek(0)
            raise ComponentMissing(f"building {names} {version} failed:\n{log.read()[-2000:]}")
        for name in packages:
            (Path(scratch) / name).replace(directory / name)


def _watch(build: subprocess.Popen[bytes], log: IO[str]) -> None:
    """Wait for the build, and say now and then how far it is: ``go build -v`` logs a line a package."""
    begun = time.monotonic()
    while True:
        try:
            build.wait(PROGRESS_SECONDS)
            return
        except subprocess.TimeoutExpired:
            packages = os.pread(log.fileno(), 1 << 24, 0).count(b"\n")
            _tell(f"  {time.monotonic() - begun:4.0f} s: {packages} packages")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
