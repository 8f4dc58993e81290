"""Finds the configuration for a command: a file, the installed release's, or an assumed one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gputile.cli.options import Config, Reach, namespace, option
from gputile.cli.terminal import fail, note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputile.api.config.v1alpha1 import Configuration
    from gputile.api.workloads import ConfigMap

CONFIG_MAP_KEY = "configuration.yaml"  # the chart's
INSTALLED_IN = "gputile"

InstalledIn = Annotated[
    str,
    option(
        "NAMESPACE",
        "Where gputile is installed; a live cluster's configuration is there.",
        callback=namespace,
    ),
]

ClusterFiles = Annotated[
    list[str] | None,
    option(
        "FILE", "Read the cluster from a file; a kind: Cluster, or the output of kubectl get nodes,pods -A -o yaml."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource(Reach):
    """How a live cluster is reached, and which configuration is in force there."""

    config: Config = None
    installed_in: InstalledIn = INSTALLED_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSource(LiveSource):
    """Where a cluster is read: from the files ``cluster``, else live."""

    cluster: ClusterFiles = None


@dataclass(frozen=True, slots=True)
class GivenConfiguration:
    """A configuration, and the memory unit in MiB that its text names; None where it leaves that to the default."""

    configuration: "Configuration"
    unit_mib: int | None


@dataclass(frozen=True, slots=True)
class UnknownConfiguration:
    """Why the configuration of a release is not known."""

    why: str


def read_configuration(path: Path | None) -> "Configuration":
    """Return the configuration in the file, the defaults without one; exit if it is not valid."""
    from gputile.api.config.v1alpha1 import Configuration

    given = read_given(path)
    return given.configuration if given is not None else Configuration()


def read_given(path: Path | None) -> GivenConfiguration | None:
    """Return the configuration in the file, None if no file is named; exit if it is not valid."""
    if path is None:
        return None
    from gputile.api.config.v1alpha1 import ConfigurationError
    from gputile.support.config_file import MOST_BYTES
    from gputile.support.files import read_bounded

    try:
        return _given(read_bounded(path, MOST_BYTES))
    except OSError as error:
        fail(f"configuration {path}: {error.strerror}")
    except ConfigurationError as error:
        fail(f"configuration {path}: {error}")


def installed_configuration(maps: "Iterable[ConfigMap]") -> GivenConfiguration | UnknownConfiguration:
    """Return the first configuration in a release's ConfigMaps that can be read, or why there is none."""
    from gputile.api.config.v1alpha1 import ConfigurationError

    why = "no ConfigMap of a release is there"
    for each in maps:
        text = each.data.get(CONFIG_MAP_KEY)
        if text is None:
            continue
        try:
            return _given(text)
        except ConfigurationError as error:
            why = f"ConfigMap {each.metadata.name} cannot be read: {error}"
    return UnknownConfiguration(why)


def in_force(given: GivenConfiguration | None, described_mib: int | None, nodes_mib: int | None) -> "Configuration":
    """Return the configuration of a cluster, the defaults where none is ``given``.

    Its memory unit is the one that is given, else the one that the cluster's description names, ``described_mib``.
    ``nodes_mib`` is the one that the nodes' agents count in: it goes before the default where nothing is given. Both
    are in MiB, None where they are not known.
    """
    import msgspec

    from gputile.api.config.v1alpha1 import Configuration

    configuration = given.configuration if given is not None else Configuration()
    if given is not None and given.unit_mib is not None:
        return configuration
    unit_mib = described_mib if described_mib is not None or given is not None else nodes_mib
    return (
        configuration if unit_mib is None else msgspec.structs.replace(configuration, gpu_memory_unit=f"{unit_mib}MiB")
    )


def assumed(configuration: "Configuration", why: str) -> "Configuration":
    """Return the configuration of a running cluster whose own is not known, and say what is taken for granted.

    Reservations count, as with the chart's defaults: it is better to name too few places than too many.
    """
    import msgspec

    from gputile.api.config.v1alpha1 import AdmissionConfiguration
    from gputile.api.wording import memory_text

    found = msgspec.structs.replace(configuration, admission=AdmissionConfiguration(gangs=True))
    note(
        f"the cluster's configuration is not known ({why}). Assumed: gangs, "
        f"gpuMemoryUnit {memory_text(found.unit_mib)}, maxPodsPerGpu {found.max_pods_per_gpu}, "
        f"placement {found.placement}, trust by {found.trust.by}"
    )
    return found


def _given(text: str | bytes) -> GivenConfiguration:
    from gputile.api.config.v1alpha1 import load_configuration
    from gputile.support.config_file import parse

    data = parse(text)
    configuration = load_configuration(data)
    return GivenConfiguration(configuration, configuration.unit_mib if data and "gpuMemoryUnit" in data else None)
