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
    """What becomes of fields that are not known, by the names of kubectl's --validate; or who judges objects."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"
    SERVER = "server"


class Switch(StrEnum):
    """Whether a part of the cluster is simulated."""

    ON = "on"
    OFF = "off"


class Policy(StrEnum):
    """The placement policies of the configuration."""

    BINPACK = "binpack"
    SPREAD = "spread"
    PACKING = "packing"


ClusterFiles = Annotated[
    list[str] | None,
    option("FILE", "The cluster in a file; a kind: Cluster, or what kubectl get nodes -o yaml prints."),
]
WorkloadFiles = Annotated[
    list[str] | None,
    option("FILE", "Manifests to read; workloads: a file, a directory, or - for standard input.", "--filename", "-f"),
]
FromCluster = Annotated[
    bool,
    typer.Option(
        "--from-cluster", help="Start from the nodes, pods and PodGroups of the cluster that kubectl talks to."
    ),
]
Namespace = Annotated[
    str | None,
    namespace_option("The pods' namespace; where workloads name none: default, with --from-cluster the context's."),
]
FitFiles = Annotated[list[str] | None, option("FILE", "Say how many more times the pods of FILE fit, and why no more.")]
Unit = Annotated[
    str | None, option("SIZE", "The memory unit, as 128MiB; as if it were this; running pods keep their bytes.")
]
WithoutNode = Annotated[
    list[str] | None,
    option("NAME", "As if this node left: its pods look for another place."),
]
WithoutNodes = Annotated[str | None, option("SELECTOR", "The same for all nodes with these labels: a=b,c in (d,e),!f.")]
WithNode = Annotated[
    list[str] | None,
    option("COUNTxGPUSxMODEL[:MODE]", "As if these nodes came, as 2x8xH100:cgpu; MODEL=48GiB for other models."),
]
OtherMode = Annotated[
    Mode | None,
    typer.Option("--mode", help="As if all GPU nodes had this mode: how many GPUs and nodes the running pods take."),
]
NeedOfPods = Annotated[
    list[str] | None,
    option(
        "[WORKLOAD=]SIZE",
        "With --mode: the memory that a pod with a whole GPU needs, as 8GiB or deployment/infer=8GiB.",
        "--need",
    ),
]
NoPreemption = Annotated[bool, typer.Option("--no-preemption", help="As if no pod left for one of higher priority.")]
AdmissionSwitch = Annotated[
    Switch, typer.Option("--admission", help="Whether gputile's webhook and policies judge and complete new pods.")
]
Validate = Annotated[
    Validation,
    typer.Option(
        "--validate",
        help="What becomes of unknown fields, as with kubectl: an error, a note, nothing; "
        "server: ask the API server about each object too, as --from-cluster does.",
    ),
]
KindFiles = Annotated[
    list[str] | None, option("FILE", "A file of kind PodKinds; where other kinds have the templates of their pods.")
]
IgnoreUnknown = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown",
        help="Leave out, with a note, amounts of GPUs in an object of an unknown kind of which no pod can be made.",
    ),
]
Compare = Annotated[
    Policy | None, typer.Option("--compare", help="Decide with this placement policy too, and say what differs.")
]
Printed = Annotated[
    DecisionFormat,
    typer.Option(
        "--output",
        "-o",
        help="What to print; wide: a row for each pod; inspect: as kubectl inspect cgpu; html: a page.",
    ),
]
Config = Annotated[
    Path | None, option("FILE", "A gputile.io/v1alpha1 Configuration; default with --from-cluster: the cluster's own.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions(LiveSource):
    """What the command line asks, in the order of the help."""

    cluster: ClusterFiles = None
    files: WorkloadFiles = None
    from_cluster: FromCluster = False
    namespace: Namespace = None
    fit: FitFiles = None
    unit: Unit = None
    without_node: WithoutNode = None
    without_nodes: WithoutNodes = None
    with_node: WithNode = None
    mode: OtherMode = None
    need: NeedOfPods = None
    no_preemption: NoPreemption = False
    admission: AdmissionSwitch = Switch.ON
    validate: Validate = Validation.STRICT
    kinds: KindFiles = None
    ignore_unknown: IgnoreUnknown = False
    compare: Compare = None
    output: Printed = DecisionFormat.TABLE
    plain: Plain = False
    config: Config = None
