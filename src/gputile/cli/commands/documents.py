"""Runs the commands that print documents: ``nodepool``, ``convert``, ``schema`` and ``version``."""

import pkgutil
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gputile.api.wording import unsupported
from gputile.cli.options import Printed, option, takes
from gputile.cli.terminal import Output, fail, note, write, write_data, yaml_text
from gputile.version import VERSION

if TYPE_CHECKING:
    from gputile.tools.nodepool.clouds import PoolSetup

_STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class NodepoolOptions:
    file: Annotated[
        Path | None,
        option(
            "FILE",
            "Manifests to read. FILE is a file with a gputile.io/v1alpha1 NodePool, or - for "
            "standard input.",
            "--filename",
            "-f",
        ),
    ] = None
    fields: Annotated[
        list[str] | None,
        option(
            "FIELD=VALUE",
            "Set a field of the NodePool, such as gpus.count=4. It overrides the value in the "
            "file.",
            "--set",
        ),
    ] = None


@takes(NodepoolOptions)
def nodepool(options: NodepoolOptions) -> None:
    """Print commands and manifests for a GPU node pool, with labels, taint and autoscaler hints.

    The output is a shell script to read and run. The command itself contacts no cloud and no
    cluster. gputile schema nodepool lists the fields.

    Exit code: 0, or 2 if the description is invalid.
    """
    from gputile.tools.nodepool.clouds import setup_for
    from gputile.tools.nodepool.pool import DescriptionError, load_nodepool

    try:
        pool = load_nodepool(_with_fields(_read(options.file), options.fields or ()))
    except DescriptionError as error:
        fail(f"{_name(options.file) if options.file else 'node pool'}: {error}")
    write(script(setup_for(pool)))


def script(setup: "PoolSetup") -> str:
    """Return a shell script that creates the node pool. Setup notes become comments."""
    import textwrap

    from gputile.tools.nodepool.clouds import File

    def comment(text: str) -> list[str]:
        return textwrap.wrap(
            text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )

    lines = ["#!/bin/sh", "set -eu"]
    for text in setup.notes:
        lines += ["", *comment(text)]
    for step in setup.steps:
        lines.append("")
        if isinstance(step, File):
            manifest = yaml_text(step.documents, width=80).rstrip("\n")
            lines += [f"cat > {shlex.quote(step.name)} <<'YAML'", manifest, "YAML"]
        else:
            lines += [*comment(step.why), step.text]
    if setup.values:
        settings = " ".join(f"--set {value}" for value in setup.values)
        lines += [
            "",
            *comment(f"The agents of these nodes need these values of the chart: {settings}"),
        ]
    return "\n".join(lines) + "\n"


def _read(path: Path | None) -> dict[str, Any]:
    """Return the fields in a file or standard input, or {} if ``path`` is None. Exit on errors."""
    from gputile.api.quantity import MIB
    from gputile.api.wording import kind_of
    from gputile.support.files import read_bounded
    from gputile.support.yaml_loader import DocumentError, load_document
    from gputile.tools.simulator.manifests import ManifestError, read_standard_input

    if path is None:
        return {}
    try:
        data = load_document(read_standard_input() if path == _STDIN else read_bounded(path, MIB))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except DocumentError as error:
        fail(f"{_name(path)}: {error}")
    except ManifestError as error:
        fail(str(error))
    if not isinstance(data, dict):
        fail(f"{_name(path)}: a NodePool must be a mapping, is {kind_of(data)}")
    return data


def _name(path: Path) -> str:
    return "standard input" if path == _STDIN else str(path)


def _with_fields(description: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the description with the fields of ``--set``, whose values are parsed as YAML."""
    from gputile.support.yaml_loader import DocumentError, load_document

    for text in fields:
        path, equals, value = text.partition("=")
        *parents, name = path.split(".")
        if not equals or not name:
            fail(f"--set {text}: use FIELD=VALUE, such as mode=cgpu or gpus.count=4")
        place = description
        for parent in parents:
            below = place.get(parent)
            place[parent] = place = dict(below) if isinstance(below, dict) else {}
        try:
            place[name] = load_document(value.encode(errors="replace"))
        except DocumentError as error:
            fail(f"--set {text}: {error}")
    return description


class ObjectFormat(StrEnum):
    YAML = "yaml"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    files: Annotated[
        list[str],
        option(
            "FILE",
            "Manifests to read. FILE is a file, a directory, or - for standard input.",
            "--filename",
            "-f",
        ),
    ]
    unit: Annotated[
        str,
        option("SIZE", "The memory unit, such as 128MiB. It is the gpuMemoryUnit of the chart."),
    ] = "1GiB"
    gpu_memory: Annotated[
        str | None,
        option(
            "SIZE",
            "The memory of a GPU, such as 80GiB. Fractions of GPUs are converted only if it is "
            "given.",
        ),
    ] = None
    output: Annotated[ObjectFormat, typer.Option("--output", "-o", help="The output format.")] = (
        ObjectFormat.YAML
    )


@takes(ConvertOptions)
def convert(options: ConvertOptions) -> None:
    """Convert manifests for HAMi, KAI, Run:ai, Volcano or time-slicing to gputile.

    Prints all objects in their original order, including objects without GPUs. A field that cannot
    be converted stays unchanged, and a note says what to do. Comments are lost.

    Exit code: 0, even if nothing had to be converted, or 2 if the input is invalid.
    """
    from gputile.tools.simulator.converted import converted
    from gputile.tools.simulator.manifests import ManifestError, Note, load_manifests, merged_notes

    unit_mib = _size("--unit", options.unit)
    gpu_mib = _size("--gpu-memory", options.gpu_memory) if options.gpu_memory else None
    try:
        manifests = load_manifests(options.files)
        found = [converted(manifest, unit_mib, gpu_mib) for manifest in manifests]
    except ManifestError as error:
        fail(str(error))
    bodies = [each.body for each in found]
    if options.output is ObjectFormat.YAML:
        write(yaml_text(bodies))
    else:
        write_data(
            bodies[0]
            if len(bodies) == 1
            else {"apiVersion": "v1", "kind": "List", "items": bodies},
            options.output,
        )
    pairs = zip(manifests, found, strict=True)
    for text in merged_notes(
        Note(text, manifest.origin) for manifest, each in pairs for text in each.notes
    ):
        note(text)
    if not any(each.changed or each.notes for each in found):
        note("nothing to convert: no object requests GPUs from another system")


def _size(name: str, text: str) -> int:
    from gputile.api.quantity import QuantityError, parse_mib

    try:
        mib = parse_mib(text)
    except QuantityError as error:
        fail(f"{name} {text}: {error}")
    if not mib:
        fail(f"{name} {text}: use a size such as 1GiB")
    return mib


SCHEMAS: Final[Mapping[str, str]] = {
    "cluster": "Input of --cluster, kind Cluster.",
    "configuration": "Input of --config and of the chart, kind Configuration.",
    "nodepool": "Input of nodepool -f, kind NodePool.",
    "podkinds": "Input of --kinds, kind PodKinds.",
    "explain": "Output of explain -o json.",
    "inspect": "Output of inspect -o json.",
    "selftest-isolation": "Output of selftest isolation -o json.",
    "simulate": "Output of simulate -o json.",
    "status": "Output of status -o json.",
    "top": "Output of top -o json.",
    "version": "Output of version -o json.",
}
"""The names of the schemas, and what each schema describes."""


def schema(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="The name of the schema. Without NAME, the names of all schemas are printed.",
            autocompletion=lambda: list(SCHEMAS),
        ),
    ] = None,
) -> None:
    """Print the JSON Schema of an input file, or of a command's output with -o json.

    The output with -o yaml has the same structure.
    """
    if name is None:
        width = max(map(len, SCHEMAS))
        write("".join(f"{each:{width}}  {what}\n" for each, what in SCHEMAS.items()))
        return
    if name not in SCHEMAS:
        fail(f"schema: {unsupported(name, SCHEMAS)}")
    write((pkgutil.get_data("gputile.cli", f"schemas/{name}.json") or b"").decode())


def version(output: Printed = Output.TABLE) -> None:
    """Print the version of gputile."""
    if output.is_data:
        from gputile.cli.answers import VersionAnswer

        write_data(VersionAnswer(VERSION), output)
    else:
        write(f"gputile {VERSION}\n")
