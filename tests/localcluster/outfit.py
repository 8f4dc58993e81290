"""What a node of the tests has beyond a kubelet and a container runtime."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.nvml import FakeMachine
from tests.localcluster.podnetwork import PodNetwork


@dataclass(frozen=True, kw_only=True)
class Outfit:
    """An outfit; the default one is that of a node whose pods use the machine's network, and that has no GPUs.

    ``network`` gives each pod an address. ``machine`` writes a machine with GPUs to a path; the container runtime hands
    them to containers as NVIDIA's does. ``images`` are archives to load. ``kubelet`` is more of its configuration.
    ``places`` is how many containers have a file system of their own for what they write.
    """

    network: PodNetwork | None = None
    machine: Callable[[Path], FakeMachine] | None = None
    images: tuple[Path, ...] = ()
    kubelet: Mapping[str, Any] = field(default_factory=dict)
    places: int = 0
