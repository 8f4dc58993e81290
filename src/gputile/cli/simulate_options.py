"""Options of ``gputile simulate``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gputile.cli import candidates
from gputile.cli.decisions import DecisionFormat
from gputile.tools.simulator.validation import Validation


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
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="The cluster in a file; a kind: Cluster, or what kubectl get nodes -o yaml prints.",
    ),
]
WorkloadFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="Manifests to read; workloads: a file, a directory, or - for standard input.",
    ),
]
FromCluster = Annotated[
    bool,
    typer.Option(
        "--from-cluster", help="Start from the nodes, pods and PodGroups of the cluster that kubectl talks to."
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        autocompletion=candidates.namespaces,
        help="The pods' namespace; where workloads name none: default, with --from-cluster the context's.",
    ),
]
FitFiles = Annotated[
    list[str] | None,
    typer.Option("--fit", metavar="FILE", help="Say how many more times the pods of FILE fit, and why no more."),
]
Unit = Annotated[
    str | None,
    typer.Option(
        "--unit", metavar="SIZE", help="The memory unit, as 128MiB; as if it were this; running pods keep their bytes."
    ),
]
WithoutNode = Annotated[
    list[str] | None,
    typer.Option(
        "--without-node",
        metavar="NAME",
        help="As if this node left: its pods look for another place.",
        autocompletion=candidates.nodes,
    ),
]
WithoutNodes = Annotated[
    str | None,
    typer.Option(
        "--without-nodes", metavar="SELECTOR", help="The same for all nodes with these labels: a=b,c in (d,e),!f."
    ),
]
AdmissionSwitch = Annotated[
    Switch, typer.Option("--admission", help="Whether gputile's webhook and policies judge and complete new pods.")
]
Validate = Annotated[
    Validation,
    typer.Option("--validate", help="What becomes of unknown fields, as with kubectl: an error, a note, nothing."),
]
KindFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--kinds", metavar="FILE", help="A file of kind PodKinds; where other kinds have the templates of their pods."
    ),
]
IgnoreUnknown = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown",
        help="Leave out, with a note, what cannot be judged because its kind or template is not known.",
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
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A gputile.io/v1alpha1 Configuration; default with --from-cluster: the cluster's own.",
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="The kubeconfig; for --from-cluster, default: as kubectl's."),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="The kubeconfig's context; for --from-cluster.",
        autocompletion=candidates.contexts,
    ),
]
