"""Where the programs of the control plane, and of a node, come from.

Kubernetes, containerd and Karpenter publish no programs in a package registry, so they are built from the released Go
modules once and kept in a cache: the control plane takes four to ten minutes on two cores the first time, the container
runtime and Karpenter two each, the plugins of the pods' network half a one, and all of them nothing afterwards.
``KUBEBUILDER_ASSETS`` names a directory with ready-made programs of Kubernetes instead, and ``GPUTILE_KUBERNETES``
another minor version to build, one of those in ``tests/e2e/kubernetes``. All versions run on the same etcd.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.localcluster.debian import debian_library
from tests.localcluster.gomodule import built
from tests.localcluster.toolchain import ComponentMissing

MODULES = Path(__file__).parent.parent / "e2e"
OTHER_VERSION = "GPUTILE_KUBERNETES"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
NODE = ("kubelet", *RUNTIME)
NETWORK = ("bridge", "host-local")
AUTOSCALER = ("karpenter",)
BUILT = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")


def find(names: Sequence[str] = CONTROL_PLANE) -> dict[str, Path]:
    """Return the path of each program, building what is neither given, installed nor cached.

    Raises:
        ComponentMissing: one of them cannot be had; says which, and why.
    """
    runtime, network, scaler = ([name for name in names if name in kind] for kind in (RUNTIME, NETWORK, AUTOSCALER))
    kubernetes = [name for name in names if name not in (*runtime, *network, *scaler)]
    return _kubernetes(kubernetes) | _runtime(runtime) | _network(network) | _autoscaler(scaler)


def kubernetes_version() -> str:
    """Return the version of Kubernetes that the tests run on, as v1.36.2.

    Raises:
        ComponentMissing: ``GPUTILE_KUBERNETES`` names a minor version that there is no module for.
    """
    return _required_version(_kubernetes_module(), "k8s.io/kubernetes")


def _kubernetes_module() -> Path:
    """Return the directory of the Go module that requires Kubernetes: the tests' own, or that of another version."""
    minor = os.environ.get(OTHER_VERSION)
    if not minor:
        return MODULES / "controlplane"
    others = {module.name: module for module in (MODULES / "kubernetes").iterdir()}
    if minor not in others:
        raise ComponentMissing(f"{OTHER_VERSION}={minor}: known are {', '.join(sorted(others))}, or unset it")
    return others[minor]


def _required_version(module: Path, requirement: str) -> str:
    text = (module / "go.mod").read_text()
    match = re.search(rf"^\s*(?:require )?{re.escape(requirement)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise ComponentMissing(f"{module / 'go.mod'} requires no {requirement}")
    return match[1]


def _kubernetes(names: Sequence[str]) -> dict[str, Path]:
    """Return the programs of Kubernetes, and etcd."""
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
    unknown = sorted(set(names) - set(BUILT))
    if unknown:
        raise ComponentMissing(f"{', '.join(unknown)}: not a program of Kubernetes that is built here")
    on_path = shutil.which("kubectl") if "kubectl" in names else None  # any recent kubectl talks to 1.36
    found = {"kubectl": Path(on_path)} if on_path else {}
    wanted = [name for name in names if name not in found]
    etcd = _etcd() if "etcd" in wanted else {}
    return found | etcd | _built_kubernetes([name for name in wanted if name != "etcd"])


def _etcd() -> dict[str, Path]:
    """Return etcd, whose package is called ``server``."""
    module, etcd = MODULES / "controlplane", "go.etcd.io/etcd/server/v3"
    version = f"etcd-{_required_version(module, etcd)}"
    return {"etcd": built(module, version, {"server": etcd})["server"]}


def _built_kubernetes(names: Sequence[str]) -> dict[str, Path]:
    version = kubernetes_version()
    major, minor = version.removeprefix("v").split(".")[:2]
    stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = [
        f"{package}.{key}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for key, value in stamped.items()
    ]
    packages = {name: f"k8s.io/kubernetes/cmd/{name}" for name in names}
    return built(_kubernetes_module(), version, packages, stamps=stamps)


def _runtime(names: Sequence[str]) -> dict[str, Path]:
    """Return the programs of the container runtime."""
    if not names:
        return {}
    module, containerd = MODULES / "containerd", "github.com/containerd/containerd/v2"
    version = f"containerd-{_required_version(module, containerd)}"
    packages = {name: f"{containerd}/cmd/{name}" for name in names if name != "runc"}
    found = built(module, version, packages, tags="no_btrfs,no_devmapper,no_tracing,no_zfs")
    return found | ({"runc": _runc(module)} if "runc" in names else {})


def _runc(module: Path) -> Path:
    """Return runc, whose first steps in a container and whose filter of system calls are written in C."""
    if shutil.which("cc") is None:
        raise ComponentMissing("no C compiler (cc), which runc is built with")
    debian_library("libseccomp")
    runc = "github.com/opencontainers/runc"
    version = f"runc-seccomp-{_required_version(module, runc)}"
    return built(module, version, {"runc": runc}, tags="seccomp", with_c=True)["runc"]


def _network(names: Sequence[str]) -> dict[str, Path]:
    """Return the CNI plugins."""
    if not names:
        return {}
    module, plugins = MODULES / "cni", "github.com/containernetworking/plugins"
    places = {"bridge": "main/bridge", "host-local": "ipam/host-local"}
    packages = {name: f"{plugins}/plugins/{places[name]}" for name in names}
    return built(module, f"cni-{_required_version(module, plugins)}", packages)


def _autoscaler(names: Sequence[str]) -> dict[str, Path]:
    """Return Karpenter with its provider kwok. The program is called as its package, kwok."""
    if not names:
        return {}
    module, karpenter = MODULES / "karpenter", "sigs.k8s.io/karpenter"
    version = f"karpenter-{_required_version(module, karpenter)}"
    return {"karpenter": built(module, version, {"kwok": f"{karpenter}/kwok"})["kwok"]}


if __name__ == "__main__":
    try:
        for component, location in find(sys.argv[1:] or CONTROL_PLANE).items():
            print(f"{component}\t{location}")
    except ComponentMissing as missing:
        sys.exit(str(missing))
