"""Helm itself, and what the chart renders with it."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.localcluster.gomodule import built
from tests.localcluster.toolchain import ComponentMissing

CHART = Path(__file__).resolve().parents[2] / "charts" / "gputile"
MODULE = Path(__file__).parent / "helm"
NAMESPACE = "gputile"
IMAGE = "registry.example.com/gputile"
KUBERNETES = "v1.36.2"


class HelmFailed(RuntimeError):
    """A helm command exited with an error; the message is what it wrote."""


@cache
def prepare() -> Path | ComponentMissing:
    """Find or build helm, once a run. To be called while tests are collected: a first build takes minutes."""
    match = re.search(r"^\s*helm\.sh/helm/v4 (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    version = match[1] if match else "unknown"
    stamps = [f"helm.sh/helm/v4/internal/version.version={version}"]
    try:
        return built(MODULE, f"helm-{version}", {"helm": "helm.sh/helm/v4/cmd/helm"}, stamps=stamps)["helm"]
    except ComponentMissing as missing:
        return missing


def program_or_skip() -> Path:
    """Return helm; where it is missing, skip the test, or fail it if this is CI (``CI=true``)."""
    outcome = prepare()
    if not isinstance(outcome, ComponentMissing):
        return outcome
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"on CI nothing may be missing: {outcome}", pytrace=False)
    pytest.skip(f"missing: {outcome}")


def helm(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run helm and return what it prints.

    Raises:
        HelmFailed: it exited with an error.
    """
    own = {"HELM_NO_PLUGINS": "1", "PATH": os.environ["PATH"], "HELM_DRIVER": "secret"} | dict(environment or {})
    command = [str(program_or_skip()), *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="gt-helm-") as home:  # it writes what it has discovered of a cluster there
        done = subprocess.run(command, capture_output=True, text=True, env={"HOME": home} | own, check=False)
    if done.returncode != 0:
        raise HelmFailed(done.stderr.strip())
    return done.stdout


def settings(values: Mapping[str, Any]) -> list[str]:
    """Return values, by their dotted names, as arguments of helm."""
    return [f"--set-json={name}={json.dumps(value)}" for name, value in {"image.repository": IMAGE, **values}.items()]


def render(values: Mapping[str, Any] | None = None, *arguments: str, release: str = "gputile") -> list[dict[str, Any]]:
    """Return the objects that the chart renders, CustomResourceDefinitions included."""
    text = helm(
        "template",
        release,
        CHART,
        f"--namespace={NAMESPACE}",
        f"--kube-version={KUBERNETES}",
        *settings(values or {}),
        *arguments,
    )
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
