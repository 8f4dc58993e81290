"""Describes what there is to do: files to write, commands to run in their order, and what to know."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gputile.api.well_known import UNSAFE_ACCESS_LABEL


@dataclass(frozen=True, slots=True)
class File:
    """A manifest of one or more documents, under the name that the commands use."""

    name: str
    documents: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A shell command, and why it is there."""

    text: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class PoolSetup:
    """The whole of it. ``notes`` are sentences, ``values`` the chart's values that go with such nodes."""

    steps: tuple[File | ShellCommand, ...]
    notes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


def command(program: str, *options: str | tuple[str, str], why: str = "") -> ShellCommand:
    """Return a command with one option a line; a pair is an option and its value, quoted where it has to be."""
    words = [option if isinstance(option, str) else f"{option[0]} {shlex.quote(option[1])}" for option in options]
    return ShellCommand(" \\\n  ".join([program, *words]), why)


def pairs(values: Mapping[str, str]) -> str:
    """Return a mapping as one word of a command line: k=v,k=v."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def words(values: Mapping[str, str]) -> str:
    """Return a mapping as several words of a command line: k=v k=v, quoted where they have to be."""
    return shlex.join(f"{key}={value}" for key, value in values.items())


def written(notes: Iterable[str | None]) -> tuple[str, ...]:
    """Return the notes that there are."""
    return tuple(note for note in notes if note)


GPU_OPERATOR = (
    ShellCommand(
        "kubectl create namespace gpu-operator --dry-run=client --output=yaml | kubectl apply --filename=-",
        f"The Operator's pods reach GPUs past any booking, which gputile refuses where {UNSAFE_ACCESS_LABEL} does not "
        "allow it.",
    ),
    ShellCommand(f"kubectl label namespace gpu-operator {UNSAFE_ACCESS_LABEL}=allowed --overwrite"),
    ShellCommand(
        "helm repo add nvidia https://helm.ngc.nvidia.com/nvidia --force-update",
        "NVIDIA's GPU Operator installs driver and toolkit. Its device plugin stays off: gputile's agent is it.",
    ),
    command(
        "helm install gpu-operator nvidia/gpu-operator",
        "--namespace gpu-operator --wait",
        "--set devicePlugin.enabled=false",
    ),
)
"""Source: NVIDIA GPU Operator, "Installing the NVIDIA GPU Operator", chart value ``devicePlugin.enabled``."""
