"""Runs ``gputile schema``, which prints JSON Schemas of the files people write and of ``-o json``."""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from gputile.api.wording import unsupported
from gputile.cli.output.streams import fail, write


@dataclass(frozen=True, slots=True)
class Described:
    """What a schema describes: a record, by its module and class, or a list of such; and what that is."""

    module: str
    record: str
    what: str
    many: bool = False


SCHEMAS: Final[Mapping[str, Described]] = {
    "cluster": Described(
        "gputile.tools.simulator.documents.cluster_description",
        "ClusterDescription",
        "A file: kind: Cluster, for --cluster.",
    ),
    "configuration": Described(
        "gputile.api.config.v1alpha1", "Configuration", "A file: kind: Configuration, for --config, and in the chart."
    ),
    "nodepool": Described("gputile.tools.nodepool.pool", "NodePool", "A file: kind: NodePool, for nodepool -f."),
    "podkinds": Described(
        "gputile.tools.simulator.rules.workloads.pod_kinds", "KindsTable", "A file: kind: PodKinds, for --kinds."
    ),
    "explain": Described("gputile.tools.simulator.explanation.answer", "ExplainAnswer", "What explain -o json prints."),
    "inspect": Described("gputile.cli.output.answers", "InspectAnswer", "What inspect -o json prints."),
    "replay": Described("gputile.tools.replay.results", "ReplayResult", "What replay -o json prints.", many=True),
    "replay-departures": Described(
        "gputile.tools.replay.departures", "Stay", "What replay --scenario departures -o json prints.", many=True
    ),
    "selftest-isolation": Described(
        "gputile.cli.output.selftest_answers", "IsolationAnswer", "What selftest isolation -o json prints."
    ),
    "selftest-symbols": Described(
        "gputile.cli.output.selftest_answers", "SymbolsAnswer", "What selftest symbols -o json prints."
    ),
    "simulate": Described("gputile.cli.output.answers", "SimulateAnswer", "What simulate -o json prints."),
    "status": Described("gputile.tools.views.status", "Installation", "What status -o json prints."),
    "top": Described("gputile.tools.web.usage.top_rows", "TopAnswer", "What top -o json prints."),
    "version": Described("gputile.cli.output.answers", "VersionAnswer", "What version -o json prints."),
}


def _names() -> list[str]:
    return list(SCHEMAS)


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The schema; default: list all.", autocompletion=_names)
    ] = None,
) -> None:
    """Print the JSON Schema of a file that people write, or of what -o json of a command prints.

    -o yaml has the same form.
    """
    if name is None:
        width = max(map(len, SCHEMAS))
        write("".join(f"{each:{width}}  {described.what}\n" for each, described in SCHEMAS.items()))
        return
    if name not in SCHEMAS:
        fail(f"schema: {unsupported(name, SCHEMAS)}")
    write((pkgutil.get_data("gputile.cli", f"schemas/{name}.json") or b"").decode())
