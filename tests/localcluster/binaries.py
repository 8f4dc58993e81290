"""Where the programs that tests run come from: the control plane, a node, and what people run beside gputile.

Nobody publishes those of Go in a package registry, so they are built from the released modules once and kept in a
cache; a few others are of Debian's packages. ``GPUTILE_KUBERNETES`` names another minor version of Kubernetes to
build, one of those in ``modules``; all run on the same etcd. ``python -m tests.localcluster.binaries`` builds all.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.localcluster.gomodule import MODULES, ComponentMissing, built, cache_directory, locked, required_version

OTHER_VERSION: Final = "GPUTILE_KUBERNETES"
COMPONENTS: Final = MODULES / "components"
CONTROL_PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE: Final = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc")
NETWORK: Final = ("bridge", "host-local")
AUTOSCALER: Final = ("karpenter",)
HELM: Final = ("helm",)
_OF_KUBERNETES: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
_CONTAINERD: Final = "github.com/containerd/containerd/v2"
_PLUGINS: Final = "github.com/containernetworking/plugins/plugins"
_PACKAGES: Final = {
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in _OF_KUBERNETES},
    **{name: f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
    "etcd": "go.etcd.io/etcd/server/v3",
    "bridge": f"{_PLUGINS}/main/bridge",
    "host-local": f"{_PLUGINS}/ipam/host-local",
    "karpenter": "sigs.k8s.io/karpenter/kwok",
    "helm": "helm.sh/helm/v4/cmd/helm",
}
_RUNC: Final = "github.com/opencontainers/runc"
_TAGS: Final = "no_btrfs,no_devmapper,no_tracing,no_zfs"  # parts of containerd that no test uses
_outcome: dict[tuple[str, ...], dict[str, Path] | ComponentMissing] = {}


def debian_program(name: str, package: str = "") -> Path:
    """Return the path of a program, from its Debian package where the machine has none and root runs the tests.

    Raises:
        ComponentMissing: it is not installed and cannot be.
    """
    if found := shutil.which(name):
        return Path(found)
    _install(package or name, f"{name} is not installed")
    if found := shutil.which(name):
        return Path(found)
    raise ComponentMissing(f"Debian's package {package or name} has no program {name}")


def debian_library(name: str) -> None:
    """Have a library that programs are built with, as pkg-config calls it, installed as ``debian_program`` installs.

    Raises:
        ComponentMissing: it is not installed and cannot be.
    """
    asked = [str(debian_program("pkg-config")), "--exists", name]
    if subprocess.run(asked, check=False).returncode != 0:
        _install(f"{name}-dev", f"the library {name} is not installed with what programs are built with")
        subprocess.run(asked, check=True)


def _install(package: str, lacking: str) -> None:
    remedy = f"{lacking}: apt-get install {package}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ComponentMissing(remedy)
    print(f"installing Debian's package {package}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    cache_directory().mkdir(parents=True, exist_ok=True)
    with locked(cache_directory() / ".apt.lock"):  # of two at once apt-get ends one
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
            done = subprocess.run(["apt-get", *command], capture_output=True, text=True, check=False, env=environment)
            if done.returncode != 0:
                raise ComponentMissing(f"{remedy} fails: {done.stderr[-800:]}")


def find(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """Return the path of each program, building what is neither given, installed nor cached.

    Raises:
        ComponentMissing: one of them cannot be had; says which, and why.
    """
    installed = shutil.which("kubectl") if "kubectl" in names else None
    found = {"kubectl": Path(installed)} if installed else {}  # any recent one talks to 1.36
    modules: dict[Path, dict[str, str]] = {}
    for name in (name for name in names if name not in found and name != "runc"):
        module = _kubernetes_module() if name in _OF_KUBERNETES else COMPONENTS
        modules.setdefault(module, {})[name] = _PACKAGES[name]
    for module, packages in modules.items():
        found |= built(module, packages, stamps=_stamps(module), tags=_TAGS)
    return found | (_runc() if "runc" in names else {})


def kubernetes_version() -> str:
    """Return the version of Kubernetes that the tests run on, as v1.36.2.

    Raises:
        ComponentMissing: ``GPUTILE_KUBERNETES`` names a minor version that there is no module for.
    """
    return required_version(_kubernetes_module(), "k8s.io/kubernetes")


def _kubernetes_module() -> Path:
    """Return the directory of the Go module that requires Kubernetes: the tests' own, or that of another version."""
    minor = os.environ.get(OTHER_VERSION)
    if not minor:
        return COMPONENTS
    others = {module.name.removeprefix("kubernetes-"): module for module in MODULES.glob("kubernetes-*")}
    if minor not in others:
        raise ComponentMissing(f"{OTHER_VERSION}={minor}: known are {', '.join(sorted(others))}, or unset it")
    return others[minor]


def _stamps(module: Path) -> list[str]:
    """Return the versions that Kubernetes and Helm say they are."""
    version = required_version(module, "k8s.io/kubernetes")
    major, minor = version.removeprefix("v").split(".")[:2]
    stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    helm = "helm.sh/helm/v4"
    return [
        *(f"{package}.{key}={value}" for package in packages for key, value in stamped.items()),
        f"{helm}/internal/version.version={required_version(COMPONENTS, helm)}",
    ]


def _runc() -> dict[str, Path]:
    """Return runc, whose first steps in a container and whose filter of system calls are written in C."""
    if shutil.which("cc") is None:
        raise ComponentMissing("no C compiler (cc), which runc is built with")
    debian_library("libseccomp")
    return built(COMPONENTS, {"runc": _RUNC}, tags="seccomp", with_c=True)


def prepare(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path] | ComponentMissing:
    """Find or build the programs, once a run: a failed build is not tried again for every test.

    To be called while tests are collected: a first build takes longer than the time limit of a test.
    """
    key = tuple(names)
    if key not in _outcome:
        try:
            _outcome[key] = find(names)
        except ComponentMissing as missing:
            _outcome[key] = missing
    return _outcome[key]


def prepare_visibly(session: pytest.Session, *kinds: Sequence[str]) -> None:
    """Find or build several sets of programs while tests are collected, with the builds' progress on the terminal."""
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        for names in kinds:
            prepare(names)


def components_or_skip(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """Return the programs; where one is missing, skip the test, or fail it if this is CI (``CI=true``)."""
    outcome = prepare(names)
    if isinstance(outcome, ComponentMissing):
        skip_or_fail(outcome)
    return outcome


def skip_or_fail(missing: ComponentMissing) -> NoReturn:
    """End a test that cannot run here, with a line that says why."""
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"on CI nothing may be missing: {missing}", pytrace=False)
    pytest.skip(f"missing: {missing}")


if __name__ == "__main__":
    try:
        for component, location in find(sys.argv[1:] or (*CONTROL_PLANE, *NODE, *NETWORK, *AUTOSCALER, *HELM)).items():
            print(f"{component}\t{location}")
    except ComponentMissing as missing:
        sys.exit(str(missing))
