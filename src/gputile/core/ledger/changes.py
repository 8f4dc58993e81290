"""Tells which rows of the ledger changed since somebody last looked."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]


class Changes:
    """A log of changed rows, bounded: who fell behind further than the log reaches recomputes everything."""

    def __init__(self, keep: int = 4096) -> None:
        self._keep = keep
        self._rows: list[int] = []
        self._base = 0

    @property
    def position(self) -> int:
        """The number of changes so far: what to pass to ``since`` the next time."""
        return self._base + len(self._rows)

    def add(self, row: int) -> None:
        """Note that a row changed."""
        self._rows.append(row)
        if len(self._rows) >= 2 * self._keep:
            self._base += self._keep
            del self._rows[: self._keep]

    def since(self, position: int) -> Rows | None:
        """Return the distinct rows that changed since ``position``, None where the log does not reach back so far."""
        if position < self._base:
            return None
        rows = self._rows[position - self._base :]
        # numpy.unique would load numpy.ma when it is first called, which takes 40 ms in the middle of a request.
        return np.array(sorted(set(rows)), dtype=np.intp)
