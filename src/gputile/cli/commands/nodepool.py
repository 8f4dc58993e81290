"""Runs ``gputile nodepool``, which describes GPU node pools on EKS, AKS and GKE (G6)."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gputile.cli.options import candidates
from gputile.cli.options.common import option, takes
from gputile.cli.output.streams import fail, write

if TYPE_CHECKING:
    from gputile.tools.nodepool.clouds import File, PoolSetup

_STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class NodepoolOptions:
    """What the command line asks, in the order of the help."""

    file: Annotated[
        Path | None,
        option(
            "FILE",
            "Manifests to read; a gputile.io/v1alpha1 NodePool, in a file, or - for standard input.",
            "--filename",
            "-f",
        ),
    ] = None
    provider: Annotated[str | None, option("PROVIDER", "eks, aks or gke.", autocompletion=candidates.providers)] = None
    way: Annotated[
        str | None,
        option(
            "WAY",
            "eks: accelerated-image, gpu-operator. aks: own-plugin, gpu-image, gpu-operator. "
            "gke: managed-driver, own-driver.",
            autocompletion=candidates.ways,
        ),
    ] = None
    name: Annotated[str | None, option("NAME", "The pool's name.")] = None
    cluster_name: Annotated[str | None, option("NAME", "The cluster's name.")] = None
    location: Annotated[str | None, option("NAME", "EKS: the region; GKE: the location.")] = None
    resource_group: Annotated[str | None, option("NAME", "AKS: the resource group.")] = None
    instance_type: Annotated[str | None, option("NAME", "Instance, VM or machine type.")] = None
    accelerator: Annotated[str | None, option("NAME", "GKE: the GPU, as nvidia-l4.")] = None
    gpus: Annotated[int | None, option("NUMBER", "GPUs of one node.")] = None
    gpu_memory: Annotated[str | None, option("SIZE", "Memory of a GPU, as 23028MiB.")] = None
    gpu_model: Annotated[str | None, option("NAME", "As nvidia-smi prints it.")] = None
    mode: Annotated[
        str | None, option("MODE", "default, cgpu, core_mem, share, mps, topology.", autocompletion=candidates.modes)
    ] = None
    unit: Annotated[str | None, option("SIZE", "The memory unit, as 128MiB; the cluster's.")] = None
    autoscaler: Annotated[
        str | None, option("NAME", "cluster-autoscaler or karpenter.", autocompletion=candidates.autoscalers)
    ] = None
    min_nodes: Annotated[int | None, option("NUMBER", "The fewest nodes.")] = None
    max_nodes: Annotated[int | None, option("NUMBER", "The most nodes.")] = None


@takes(NodepoolOptions)
def nodepool(options: NodepoolOptions) -> None:
    """Write the commands and manifests of a GPU node pool, with labels, taint and hints for the autoscaler.

    Prints a shell script to read and run; nothing is sent anywhere. An option counts before what the file says.

    Exit code: 0, 2 for a description that cannot be used.
    """
    from gputile.tools.nodepool.clouds import setup_for
    from gputile.tools.nodepool.pool import DescriptionError, load_nodepool

    described = {
        "provider": options.provider,
        "way": options.way,
        "name": options.name,
        "cluster": options.cluster_name,
        "location": options.location,
        "resourceGroup": options.resource_group,
        "instanceType": options.instance_type,
        "accelerator": options.accelerator,
        "mode": options.mode,
        "gpuMemoryUnit": options.unit,
        "autoscaler": options.autoscaler,
        "minNodes": options.min_nodes,
        "maxNodes": options.max_nodes,
    }
    group = {"count": options.gpus, "memory": options.gpu_memory, "model": options.gpu_model}
    try:
        pool = load_nodepool(_merged(_read(options), described, group))
    except DescriptionError as error:
        fail(f"{_name(options.file) if options.file else 'node pool'}: {error}")
    write(script(setup_for(pool)))


def script(setup: "PoolSetup") -> str:
    """Return what makes a node pool as a shell script."""
    from gputile.tools.nodepool.clouds import File

    lines = ["#!/bin/sh", "set -eu"]
    for text in setup.notes:
        lines += ["", *_comment(text)]
    for step in setup.steps:
        lines.append("")
        if isinstance(step, File):
            lines += [f"cat > {shlex.quote(step.name)} <<'YAML'", _yaml(step).rstrip("\n"), "YAML"]
            continue
        lines += [*_comment(step.why), step.text]
    if setup.values:
        settings = " ".join(f"--set {value}" for value in setup.values)
        lines += ["", *_comment(f"The agents of these nodes need these values of the chart: {settings}")]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _yaml(file: "File") -> str:
    from gputile.cli.output.streams import yaml_text

    return yaml_text(file.documents, width=80)


def _read(options: NodepoolOptions) -> dict[str, Any]:
    from gputile.api.quantity import MIB
    from gputile.api.wording import kind_of
    from gputile.support.files import read_bounded
    from gputile.support.yaml_loader import DocumentError, load_document

    path = options.file
    if path is None:
        return {}
    try:
        data = load_document(_standard_input() if path == _STDIN else read_bounded(path, MIB))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except DocumentError as error:
        fail(f"{_name(path)}: {error}")
    if not isinstance(data, dict):
        fail(f"{_name(path)}: a NodePool of gputile.io/v1alpha1 is a mapping, this is {kind_of(data)}")
    return data


def _standard_input() -> bytes:
    from gputile.tools.simulator.manifests import ManifestError, read_standard_input

    try:
        return read_standard_input()
    except ManifestError as error:
        fail(str(error))


def _name(path: Path) -> str:
    return "standard input" if path == _STDIN else str(path)


def _merged(data: dict[str, Any], options: dict[str, Any], gpus: dict[str, Any]) -> dict[str, Any]:
    data = data | {key: value for key, value in options.items() if value is not None}
    given = {key: value for key, value in gpus.items() if value is not None}
    described = data.get("gpus", {})
    if given and isinstance(described, dict):
        data["gpus"] = described | given
    return data
