"""Tells how fast any two GPUs of a machine talk to each other, in GB/s one way.

NVLink counts the active links of a pair, directly or through NVSwitch, where each GPU can use all its links to
reach any other. Without NVLink it is the slower GPU's PCIe link, scaled by what lies between the two. The scale is
an estimate that keeps the order; on one machine only the order decides (T2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

# GB/s one way of one link, by nvmlNvlinkVersion_t (NVIDIA's data sheets: P100 20, V100 to H100 25, B200 50).
_NVLINK_GB_S: Final = {1: 20.0, 2: 25.0, 3: 25.0, 4: 25.0, 5: 25.0, 6: 25.0, 7: 50.0, 8: 50.0}
_NVLINK_UNKNOWN_GB_S: Final = 25.0
# GB/s one way of one lane, by PCIe generation, after encoding (PCI-SIG: 2.5, 5, 8, 16, 32, 64 GT/s).
_PCIE_LANE_GB_S: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_PCIE_UNKNOWN: Final = (3, 16)
# Part of the link's speed that is left between two GPUs, by nvmlGpuTopologyLevel_t.
_SCALE: Final = (
    (0, 1.0),  # on one board
    (10, 1.0),  # below one PCIe switch
    (20, 0.9),  # below several PCIe switches of one host bridge
    (30, 0.8),  # at one host bridge
    (40, 0.7),  # at several host bridges of one NUMA node
    (50, 0.5),  # across NUMA nodes
)


@dataclass(frozen=True, slots=True)
class GpuLink:
    """One active NVLink: its nvmlNvlinkVersion_t, and the bus ID of the GPU at its end, "" for an NVSwitch."""

    version: int
    peer: str


@dataclass(frozen=True, slots=True)
class Wiring:
    """One GPU's connections; ``pcie`` is the best (generation, width) of GPU and slot, (0, 0) where unknown."""

    bus_id: str
    pcie: tuple[int, int] = (0, 0)
    links: tuple[GpuLink, ...] = ()


def bandwidth_matrix(gpus: Sequence[Wiring], level: Callable[[int, int], int]) -> tuple[tuple[float, ...], ...]:
    """Return the matrix of GB/s; ``level(i, j)`` is the nvmlGpuTopologyLevel_t of the i-th and the j-th GPU."""
    rows = [[0.0] * len(gpus) for _ in gpus]
    for i, one in enumerate(gpus):
        for j, other in enumerate(gpus[:i]):
            speed = _nvlink(one, other) or min(_pcie(one), _pcie(other)) * _scale(level(j, i))
            rows[i][j] = rows[j][i] = round(speed, 1)
    return tuple(tuple(row) for row in rows)


def _nvlink(one: Wiring, other: Wiring) -> float:
    direct = min(_speed(one, other.bus_id), _speed(other, one.bus_id))
    return direct + min(_speed(one, ""), _speed(other, ""))


def _speed(gpu: Wiring, peer: str) -> float:
    return sum(_NVLINK_GB_S.get(link.version, _NVLINK_UNKNOWN_GB_S) for link in gpu.links if link.peer == peer)


def _pcie(gpu: Wiring) -> float:
    generation, width = gpu.pcie if all(gpu.pcie) else _PCIE_UNKNOWN
    return _PCIE_LANE_GB_S.get(generation, max(_PCIE_LANE_GB_S.values())) * width


def _scale(level: int) -> float:
    return next((scale for known, scale in _SCALE if level <= known), _SCALE[-1][1])
