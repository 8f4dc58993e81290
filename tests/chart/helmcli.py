"""Helm itself, and what the chart renders with it."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    with helm_process(*arguments, environment=environment) as process:
        told, complained = process.communicate()
    if process.returncode != 0:
        raise HelmFailed(complained.strip())
    return told


@contextmanager
def helm_process(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start helm; who has left the context has its output no longer, and it runs no longer."""
    own = {"HELM_NO_PLUGINS": "1", "PATH": os.environ["PATH"], "HELM_DRIVER": "secret"} | dict(environment or {})
    command = [str(program_or_skip()), *map(str, arguments)]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryDirectory(prefix="gt-helm-") as home,  # it writes what it has discovered of a cluster there
        subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={"HOME": home} | own) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def settings(values: Mapping[str, Any]) -> list[str]:
    """Return values, by their dotted names, as arguments of helm."""
    return [f"--set-json={name}={_json(value)}" for name, value in {"image.repository": IMAGE, **values}.items()]


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


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
