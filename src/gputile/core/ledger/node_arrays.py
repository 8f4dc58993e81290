"""Holds the ledger's arrays: one row for each node, one column for each GPU.

The arrays are derived from nodes and bookings, and change only with these; placement reads them. Rows and columns grow
by doubling. A row without a node has no usable GPU.
"""

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

NO_GROUP, MIXED_GROUPS = 0, -1


def group_number(name: str) -> int:
    """Return the number of a trust group in ``NodeArrays.group``.

    It is Python's 64-bit hash with a random key in each process, so nobody can construct two names with one number. It
    is never -1 or 0 (``MIXED_GROUPS``, ``NO_GROUP``).
    """
    return hash(name) or 1


class NodeArrays:
    """Arrays of shape [rows, GPUs] unless said otherwise.

    ``total`` and ``used``: MiB. ``percent``: percent of compute in use. ``used``, ``percent``, ``cpu`` and ``host_mib``
    are wide enough for any sum of amounts in annotations and pods. ``pods``: pods on the GPU. ``usable``: the GPU
    exists and is healthy. ``model``: a number for its model. ``group``: the number of the trust group whose pods are
    on the GPU, ``NO_GROUP`` or ``MIXED_GROUPS``; only counted on nodes that are ``grouped``.

    Of shape [rows]: ``serving_mode``: the GPU requests that the node serves. ``spread``: whether pods go to the least
    used GPU. ``max_pods_per_gpu``: how many pods a GPU may hold. ``unit``: the node's memory unit in MiB. ``grouped``:
    whether each GPU may hold pods of one trust group only. ``packed``: whether GPUs are chosen by the policy
    ``packing``. ``by_claims``: whether GPUs are requested by ResourceClaims. ``all_cpu`` and ``all_host_mib``: the
    milli-CPU and the MiB of the machine's memory that pods may use. ``cpu`` and ``host_mib``: what is left of these.
    """

    def __init__(self, rows: int = 16, gpus: int = 8) -> None:
        self.total: Int32 = np.zeros((rows, gpus), np.int32)
        self.used: Int64 = np.zeros((rows, gpus), np.int64)
        self.percent: Int64 = np.zeros((rows, gpus), np.int64)
        self.pods: Int32 = np.zeros((rows, gpus), np.int32)
        self.group: Int64 = np.zeros((rows, gpus), np.int64)
        self.usable: Bool = np.zeros((rows, gpus), np.bool_)
        self.model: Int64 = np.zeros((rows, gpus), np.int64)
        self.serving_mode: Int32 = np.zeros(rows, np.int32)
        self.max_pods_per_gpu: Int32 = np.zeros(rows, np.int32)
        self.unit: Int32 = np.zeros(rows, np.int32)
        self.spread: Bool = np.zeros(rows, np.bool_)
        self.grouped: Bool = np.zeros(rows, np.bool_)
        self.packed: Bool = np.zeros(rows, np.bool_)
        self.by_claims: Bool = np.zeros(rows, np.bool_)
        self.all_cpu: Int64 = np.zeros(rows, np.int64)
        self.all_host_mib: Int64 = np.zeros(rows, np.int64)
        self.cpu: Int64 = np.zeros(rows, np.int64)
        self.host_mib: Int64 = np.zeros(rows, np.int64)

    @property
    def rows(self) -> int:
        return int(self.total.shape[0])

    @property
    def gpus(self) -> int:
        return int(self.total.shape[1])

    def grow(self, rows: int, gpus: int) -> None:
        new_rows, new_gpus = self.rows, self.gpus
        while new_rows < rows:
            new_rows *= 2
        while new_gpus < gpus:
            new_gpus *= 2
        if (new_rows, new_gpus) == (self.rows, self.gpus):
            return
        for name, old in list(vars(self).items()):
            shape = (new_rows, new_gpus) if old.ndim == 2 else (new_rows,)
            new = np.zeros(shape, old.dtype)
            new[tuple(slice(length) for length in old.shape)] = old
            setattr(self, name, new)

    def copy(self) -> "NodeArrays":
        twin = NodeArrays.__new__(NodeArrays)
        for name, array in vars(self).items():
            setattr(twin, name, array.copy())
        return twin

    def clear(self, row: int) -> None:
        for array in vars(self).values():
            array[row] = 0


class Changes:
    """A bounded log of the rows that changed. Readers that are further behind than it reaches recompute all rows."""

    def __init__(self, keep: int = 4096) -> None:
        self._keep = keep
        self._rows: list[int] = []
        self._base = 0

    @property
    def position(self) -> int:
        """The number of changes so far: what to pass to ``rows_since`` the next time."""
        return self._base + len(self._rows)

    def add(self, row: int) -> None:
        self._rows.append(row)
        if len(self._rows) >= 2 * self._keep:
            self._base += self._keep
            del self._rows[: self._keep]

    def rows_since(self, position: int) -> Rows | None:
        """Return the distinct rows that changed since ``position``; None if the log does not reach back so far."""
        if position < self._base:
            return None
        # numpy.unique would load numpy.ma when it is first called, which takes 40 ms in the middle of a request.
        return np.array(sorted(set(self._rows[position - self._base :])), dtype=np.intp)
