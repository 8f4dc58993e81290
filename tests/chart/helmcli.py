"""Helm itself, and what the chart renders with it."""

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.localcluster.binaries import HELM, components_or_skip

CHART = Path(__file__).resolve().parents[2] / "charts" / "gputile"
NAMESPACE = "gputile"
IMAGE = "registry.example.com/gputile"
KUBERNETES = "v1.36.2"


class HelmFailed(RuntimeError):
    """A helm command exited with an error; the message is what it wrote."""


def helm_program() -> Path:
    """Return helm; where it is missing, skip the test, or fail it on CI."""
    return components_or_skip(HELM)["helm"]


def helm(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run helm and return what it prints.

    Raises:
        HelmFailed: it exited with an error.
    """
    own = {"HELM_NO_PLUGINS": "1", "PATH": os.environ["PATH"], "HELM_DRIVER": "secret"} | dict(environment or {})
    command = [str(helm_program()), *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="gt-helm-") as home:  # it writes what it has discovered of a cluster there
        done = subprocess.run(command, capture_output=True, text=True, env={"HOME": home} | own, check=False)
    if done.returncode != 0:
        raise HelmFailed(done.stderr.strip())
    return done.stdout


def settings(values: Mapping[str, Any]) -> list[str]:
    """Return values, by their dotted names, as arguments of helm."""
    return [f"--set-json={name}={json.dumps(value)}" for name, value in {"image.repository": IMAGE, **values}.items()]


def render(values: Mapping[str, Any] | None = None, *arguments: str, release: str = "gputile") -> list[dict[str, Any]]:
    """Return the objects that the chart renders, CustomResourceDefinitions included; nobody may change them."""
    return _rendered(release, *settings(values or {}), *arguments)


@functools.cache
def _rendered(release: str, *arguments: str) -> list[dict[str, Any]]:
    text = helm("template", release, CHART, f"--namespace={NAMESPACE}", f"--kube-version={KUBERNETES}", *arguments)
    documents = yaml.load_all(text, yaml.CSafeLoader)  # safe_load_all takes ten times as long, more than helm itself
    return [document for document in documents if document]


def of_kind(objects: Sequence[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by their names."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def pod_specs(objects: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the pod template's spec of each workload, by the workload's name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in ("Deployment", "DaemonSet")
    }
