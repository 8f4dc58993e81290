"""Defines the options of ``gputile simulate``."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gputile.api.well_known import Mode
from gputile.cli.configuration import LiveSource
from gputile.cli.options import Plain, namespace_option, option
from gputile.cli.terminal import DecisionFormat


class Validation(StrEnum):
    """How unknown fields are handled, as in kubectl. SERVER has the API server validate objects."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"
    SERVER = "server"


class Switch(StrEnum):
    """Whether a part of the cluster is simulated."""

    ON = "on"
    OFF = "off"


class Policy(StrEnum):
    BINPACK = "binpack"
    SPREAD = "spread"
    PACKING = "packing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions(LiveSource):
    cluster: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Read the cluster from a file; a kind: Cluster, or the output of kubectl get nodes -o "
            "yaml.",
        ),
    ] = None
    files: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Manifests to read; workloads: a file, a directory, or - for standard input.",
            "--filename",
            "-f",
        ),
    ] = None
    from_cluster: Annotated[
        bool,
        typer.Option(
            "--from-cluster",
            help="Start from the nodes, pods and PodGroups of kubectl's current cluster.",
        ),
    ] = False
    namespace: Annotated[
        str | None,
        namespace_option(
            "The pods' namespace; of workloads without one; default: the context's, or default."
        ),
    ] = None
    fit: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Count how many more copies of the pods in FILE fit, and print what prevents the next.",
        ),
    ] = None
    unit: Annotated[
        str | None, option("SIZE", "The memory unit, such as 128MiB; pods keep their bytes.")
    ] = None
    without_node: Annotated[
        list[str] | None,
        option("NAME", "Simulate that this node is removed; its pods are placed again."),
    ] = None
    without_nodes: Annotated[
        str | None,
        option(
            "SELECTOR", "Simulate that the nodes with these labels are removed: a=b,c in (d,e),!f."
        ),
    ] = None
    with_node: Annotated[
        list[str] | None,
        option(
            "COUNTxGPUSxMODEL[:MODE]",
            "Simulate that nodes are added, such as 2x8xH100:cgpu; MODEL=48GiB for other models.",
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        typer.Option(
            "--mode",
            help="Simulate that all GPU nodes have this mode: how many GPUs and nodes the running "
            "pods take.",
        ),
    ] = None
    need: Annotated[
        list[str] | None,
        option(
            "[WORKLOAD=]SIZE",
            "With --mode: the memory that a pod with a whole GPU needs, such as 8GiB or "
            "deployment/infer=8GiB.",
        ),
    ] = None
    no_preemption: Annotated[
        bool, typer.Option("--no-preemption", help="Simulate without preemption.")
    ] = False
    admission: Annotated[
        Switch,
        typer.Option(
            "--admission", help="Whether gputile's webhook and policies apply to new pods."
        ),
    ] = Switch.ON
    validate: Annotated[
        Validation,
        typer.Option(
            "--validate",
            help="How to treat unknown fields, as kubectl does: an error, a note, nothing; "
            "server: have the API server validate each object too, as --from-cluster does.",
        ),
    ] = Validation.STRICT
    kinds: Annotated[
        list[str] | None,
        option(
            "FILE",
            "A file of kind PodKinds, which says where other kinds have their pod templates.",
        ),
    ] = None
    ignore_unknown: Annotated[
        bool,
        typer.Option(
            "--ignore-unknown",
            help="Ignore, with a note, GPU requests in objects of unknown kinds, and claims that "
            "cannot be judged.",
        ),
    ] = False
    compare: Annotated[
        Policy | None,
        typer.Option(
            "--compare", help="Decide with this placement policy too, and show the differences."
        ),
    ] = None
    output: Annotated[
        DecisionFormat,
        typer.Option(
            "--output",
            "-o",
            help="What to print; wide: a row for each pod; inspect: as kubectl inspect cgpu; html: "
            "a page.",
        ),
    ] = DecisionFormat.TABLE
    plain: Plain = False
    config: Annotated[
        Path | None,
        option(
            "FILE",
            "A gputile.io/v1alpha1 Configuration; default with --from-cluster: the cluster's own.",
        ),
    ] = None
