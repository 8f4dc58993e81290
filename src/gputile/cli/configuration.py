"""Finds a command's configuration in a file or an installed release, or else assumes one."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gputile.cli.options import ApiOptions, Config, namespace, option
from gputile.cli.terminal import fail, note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputile.api.config.v1alpha1 import Configuration
    from gputile.api.workloads import ConfigMap

CONFIG_MAP_KEY = "configuration.yaml"  # as in the chart
INSTALLED_IN = "gputile"

InstalledIn = Annotated[
    str, option("NAMESPACE", "The namespace in which gputile is installed.", callback=namespace)
]

ClusterFiles = Annotated[
    list[str] | None,
    option(
        "FILE",
        "Read the cluster from a file. The file contains an object of kind Cluster, or the output "
        "of kubectl get nodes,pods -A -o yaml.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource(ApiOptions):
    config: Config = None
    installed_in: InstalledIn = INSTALLED_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSource(LiveSource):
    cluster: ClusterFiles = None


@dataclass(frozen=True, slots=True)
class GivenConfiguration:
    """A known configuration. ``unit_mib`` is None if it does not set a memory unit."""

    configuration: "Configuration"
    unit_mib: int | None


@dataclass(frozen=True, slots=True)
class UnknownConfiguration:
    why: str


def read_configuration(path: Path | None) -> "Configuration":
    """Read the configuration file, or return the defaults if ``path`` is None. Exit on errors."""
    from gputile.api.config.v1alpha1 import Configuration

    given = read_given(path)
    return given.configuration if given is not None else Configuration()


def read_given(path: Path | None) -> GivenConfiguration | None:
    """Read the configuration file, or return None if ``path`` is None. Exit on errors."""
    if path is None:
        return None
    from gputile.api.config.section import ConfigurationError
    from gputile.support.config_file import MOST_BYTES
    from gputile.support.files import read_bounded

    try:
        return _given(read_bounded(path, MOST_BYTES))
    except OSError as error:
        fail(f"configuration {path}: {error.strerror}")
    except ConfigurationError as error:
        fail(f"configuration {path}: {error}")


def installed_configuration(
    maps: "Iterable[ConfigMap]",
) -> GivenConfiguration | UnknownConfiguration:
    """Return the first valid configuration in ``maps``, or the reason why there is none."""
    from gputile.api.config.section import ConfigurationError

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


def in_force(
    given: GivenConfiguration | None, described_mib: int | None, nodes_mib: int | None
) -> "Configuration":
    """Return the configuration of a cluster: ``given``, or the defaults if ``given`` is None.

    The memory unit is the first of these that is known:

    1. the unit that ``given`` sets
    2. ``described_mib``, from the description of the cluster
    3. ``nodes_mib``, as reported by the nodes' agents, but only if ``given`` is None
    4. the default
    """
    import msgspec

    from gputile.api.config.v1alpha1 import Configuration

    configuration = given.configuration if given is not None else Configuration()
    if given is not None and given.unit_mib is not None:
        return configuration
    unit_mib = described_mib if described_mib is not None or given is not None else nodes_mib
    return (
        configuration
        if unit_mib is None
        else msgspec.structs.replace(configuration, gpu_memory_unit=f"{unit_mib}MiB")
    )


def assumed(configuration: "Configuration", why: str) -> "Configuration":
    """Return the assumed configuration of a cluster, and print the assumptions as a note.

    Gangs are assumed to be enabled, so that reservations count as bookings. Reporting too little
    free capacity is better than reporting too much.
    """
    import msgspec

    from gputile.api.config.v1alpha1 import AdmissionConfiguration
    from gputile.api.wording import memory_text

    found = msgspec.structs.replace(configuration, admission=AdmissionConfiguration(gangs=True))
    note(
        f"the cluster's configuration is unknown ({why}). Assumed: gangs, "
        f"gpuMemoryUnit {memory_text(found.unit_mib)}, maxPodsPerGpu {found.max_pods_per_gpu}, "
        f"placement {found.placement}, trust by {found.trust.by}"
    )
    return found


def _given(text: str | bytes) -> GivenConfiguration:
    from gputile.api.config.v1alpha1 import load_configuration
    from gputile.support.config_file import parse

    data = parse(text)
    configuration = load_configuration(data)
    return GivenConfiguration(
        configuration, configuration.unit_mib if data and "gpuMemoryUnit" in data else None
    )
