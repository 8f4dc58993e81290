"""Runs ``gputile convert``, which converts manifests of other systems for gputile."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from gputile.cli.options import option, takes
from gputile.cli.terminal import fail, note, write, write_json, yaml_text


class ObjectFormat(StrEnum):
    """Output formats of manifests."""

    YAML = "yaml"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of the command, in the order of the help."""

    files: Annotated[
        list[str],
        option("FILE", "Manifests to read; a file, a directory, or - for standard input.", "--filename", "-f"),
    ]
    unit: Annotated[str, option("SIZE", "The memory unit, as 128MiB; it is the chart's gpuMemoryUnit.")] = "1GiB"
    gpu_memory: Annotated[
        str | None, option("SIZE", "What parts of a GPU are parts of, as 80GiB; without it they stay as they are.")
    ] = None
    output: Annotated[ObjectFormat, typer.Option("--output", "-o", help="What to print.")] = ObjectFormat.YAML


@takes(ConvertOptions)
def convert(options: ConvertOptions) -> None:
    """Write manifests for HAMi, KAI, Run:ai, Volcano or time-slicing anew for gputile.

    Prints all objects, in their order, those without GPUs too. What cannot be converted stays as it is, and a note
    says what to do. Comments are lost.

    Exit code: 0, also when nothing had to be converted, 2 for input that cannot be used.
    """
    from gputile.tools.simulator.converted import converted
    from gputile.tools.simulator.manifests import ManifestError, Note, load_manifests, told_together

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
        write_json(bodies[0] if len(bodies) == 1 else {"apiVersion": "v1", "kind": "List", "items": bodies})
    pairs = zip(manifests, found, strict=True)
    for text in told_together(Note(told, manifest.origin) for manifest, each in pairs for told in each.told):
        note(text)
    if not any(each.changed or each.told for each in found):
        note("nothing to convert: no other system is asked for GPUs")


def _size(name: str, text: str) -> int:
    from gputile.api.quantity import QuantityError, parse_mib

    try:
        mib = parse_mib(text)
    except QuantityError as error:
        fail(f"{name} {text}: {error}")
    if not mib:
        fail(f"{name} {text}: say a size, as 1GiB")
    return mib
