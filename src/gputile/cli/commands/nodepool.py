"""Runs ``gputile nodepool``, which describes GPU node pools on EKS, AKS and GKE (G6)."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gputile.cli.options import option, takes
from gputile.cli.terminal import fail, write

if TYPE_CHECKING:
    from gputile.tools.nodepool.clouds import File, PoolSetup

_STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class NodepoolOptions:
    file: Annotated[
        Path | None,
        option(
            "FILE",
            "Manifests to read; a gputile.io/v1alpha1 NodePool, in a file, or - for standard input.",
            "--filename",
            "-f",
        ),
    ] = None
    fields: Annotated[
        list[str] | None,
        option("FIELD=VALUE", "A field of the NodePool, in place of what the file says: gpus.count=4.", "--set"),
    ] = None


@takes(NodepoolOptions)
def nodepool(options: NodepoolOptions) -> None:
    """Write the commands and manifests of a GPU node pool, with labels, taint and hints for the autoscaler.

    Prints a shell script to read and run; nothing is sent anywhere. gputile schema nodepool lists the fields.

    Exit code: 0, 2 for a description that cannot be used.
    """
    from gputile.tools.nodepool.clouds import setup_for
    from gputile.tools.nodepool.pool import DescriptionError, load_nodepool

    try:
        pool = load_nodepool(_with_fields(_read(options.file), options.fields or ()))
    except DescriptionError as error:
        fail(f"{_name(options.file) if options.file else 'node pool'}: {error}")
    write(script(setup_for(pool)))


def script(setup: "PoolSetup") -> str:
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
    from gputile.cli.terminal import yaml_text

    return yaml_text(file.documents, width=80)


def _read(path: Path | None) -> dict[str, Any]:
    from gputile.api.quantity import MIB
    from gputile.api.wording import kind_of
    from gputile.support.files import read_bounded
    from gputile.support.yaml_loader import DocumentError, load_document

    if path is None:
        return {}
    try:
        data = load_document(_standard_input() if path == _STDIN else read_bounded(path, MIB))
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except DocumentError as error:
        fail(f"{_name(path)}: {error}")
    if not isinstance(data, dict):
        fail(f"{_name(path)}: a NodePool must be a mapping, is {kind_of(data)}")
    return data


def _standard_input() -> bytes:
    from gputile.tools.simulator.manifests import ManifestError, read_standard_input

    try:
        return read_standard_input()
    except ManifestError as error:
        fail(str(error))


def _name(path: Path) -> str:
    return "standard input" if path == _STDIN else str(path)


def _with_fields(description: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Set the fields from the command line in the description, and return it. Their values are YAML."""
    from gputile.support.yaml_loader import DocumentError, load_document

    for text in fields:
        path, equals, value = text.partition("=")
        *parents, name = path.split(".")
        if not equals or not name:
            fail(f"--set {text}: use FIELD=VALUE, as mode=cgpu or gpus.count=4")
        place = description
        for parent in parents:
            below = place.get(parent)
            place[parent] = place = dict(below) if isinstance(below, dict) else {}
        try:
            place[name] = load_document(value.encode(errors="replace"))
        except DocumentError as error:
            fail(f"--set {text}: {error}")
    return description
