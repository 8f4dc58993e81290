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
    """How to treat unknown fields, as in kubectl. With SERVER, the API server validates objects."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"
    SERVER = "server"


class Switch(StrEnum):
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
            "Read the cluster from a file. The file contains an object of kind Cluster, or the "
            "output of kubectl get nodes -o yaml.",
        ),
    ] = None
    files: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Manifests to read. FILE is a file with workloads, a directory, or - for standard "
            "input.",
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
            "The namespace of the pods. It applies to workloads without a namespace. By default, "
            "the context's namespace, or default."
        ),
    ] = None
    fit: Annotated[
        list[str] | None,
        option(
            "FILE",
            "Count how many more copies of the pods in FILE fit. Print why no further copy fits.",
        ),
    ] = None
    unit: Annotated[
        str | None, option("SIZE", "The memory unit, such as 128MiB. Pods keep their bytes.")
    ] = None
    without_node: Annotated[
        list[str] | None,
        option("NAME", "Simulate that this node is removed. Its pods are placed again."),
    ] = None
    without_nodes: Annotated[
        str | None,
        option(
            "SELECTOR",
            "Simulate that the nodes with these labels are removed, such as a=b,c in (d,e),!f.",
        ),
    ] = None
    with_node: Annotated[
        list[str] | None,
        option(
            "COUNTxGPUSxMODEL[:MODE]",
            "Simulate that nodes are added, such as 2x8xH100:cgpu. For an unknown model, append "
            "its memory: MODEL=48GiB.",
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        typer.Option(
            "--mode",
            help="Simulate that all GPU nodes have this mode, and print how many GPUs and nodes "
            "the running and pending pods use then.",
        ),
    ] = None
    need: Annotated[
        list[str] | None,
        option(
            "[WORKLOAD=]SIZE",
            "With --mode, the memory that a pod with a whole GPU needs. SIZE such as 8GiB applies "
            "to all of these pods, deployment/infer=8GiB to one workload.",
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
            help="How to treat unknown fields, as in kubectl. With strict they are an error, with "
            "warn a note is printed, and with ignore nothing is printed. With server, the API "
            "server also validates each object, as with --from-cluster.",
        ),
    ] = Validation.STRICT
    kinds: Annotated[
        list[str] | None,
        option(
            "FILE",
            "A file of kind PodKinds, which defines where objects of other kinds contain their pod "
            "templates.",
        ),
    ] = None
    ignore_unknown: Annotated[
        bool,
        typer.Option(
            "--ignore-unknown",
            help="Ignore GPU requests in objects of unknown kinds, and claims that cannot be "
            "simulated. A note is printed for them.",
        ),
    ] = False
    compare: Annotated[
        Policy | None,
        typer.Option(
            "--compare",
            help="Repeat the simulation with this placement policy, and show the differences.",
        ),
    ] = None
    output: Annotated[
        DecisionFormat,
        typer.Option(
            "--output",
            "-o",
            help="The output format. wide prints a row for each pod, inspect prints the tables of "
            "gputile inspect, and html prints a page.",
        ),
    ] = DecisionFormat.TABLE
    plain: Plain = False
    config: Annotated[
        Path | None,
        option(
            "FILE",
            "A file with a gputile.io/v1alpha1 Configuration. With --from-cluster, the default is "
            "the cluster's own.",
        ),
    ] = None
