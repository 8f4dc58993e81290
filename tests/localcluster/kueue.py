"""The kinds of Kueue, and what its controllers write to Jobs and pods: whoever tests plays them.

What they write is that of the module's pkg/controller/jobs: a Job is suspended or not, and the labels of the flavor are
in its node selector; a pod has a gate of Kueue's or not.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.localcluster.binaries import MODULES
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gomodule import module_directory

GATE: Final = "kueue.x-k8s.io/admission"


@contextmanager
def kueue_kinds(plane: ControlPlane) -> Iterator[None]:
    """Serve Kueue's kinds for as long as the context lasts; they and all objects of them are gone at the end."""
    definitions = [f"--filename={definition}" for definition in _definitions()]
    plane.kubectl("apply", "--server-side", *definitions)
    try:
        plane.kubectl("wait", "--for=condition=Established", "--all", "crd", "--timeout=60s")
        yield
    finally:
        plane.kubectl("delete", "--ignore-not-found", *definitions)


def admit(plane: ControlPlane, namespace: str, job: str, flavor: Mapping[str, str]) -> None:
    """Let a suspended Job go on, on the nodes of a flavor, whose labels are given."""
    spec = {"suspend": False, "template": {"spec": {"nodeSelector": dict(flavor)}}}
    plane.api.patch(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}", {"spec": spec})


def evict(plane: ControlPlane, namespace: str, job: str) -> None:
    """Suspend a Job, whose pods the controller of Jobs then deletes."""
    plane.api.patch(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}", {"spec": {"suspend": True}})


def ungate(plane: ControlPlane, namespace: str, pod: str) -> None:
    """Remove Kueue's gate from a pod, and no other."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    gates = [gate for gate in plane.api.get(path)["spec"]["schedulingGates"] if gate["name"] != GATE]
    plane.api.patch(path, {"spec": {"schedulingGates": gates}})


def _definitions() -> list[Path]:
    """Return the CustomResourceDefinitions, which are files of Kueue's module."""
    return sorted(module_directory(MODULES / "kueue", "sigs.k8s.io/kueue").glob("config/components/crd/bases/*.yaml"))
