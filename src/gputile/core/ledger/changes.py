"""Tells which rows of the ledger changed since somebody last looked."""

import numpy as np
import numpy.typing as npt

from gputile.core.kube_predicates.recent_changes import RecentChanges

Rows = npt.NDArray[np.intp]


class Changes(RecentChanges[int]):
    """The rows that changed: who fell behind further than the log reaches recomputes everything."""

    def __init__(self, keep: int = 4096) -> None:
        super().__init__(keep)

    def rows_since(self, position: int) -> Rows | None:
        """Return the distinct rows that changed since ``position``, None where the log does not reach back so far."""
        if not self.reaches(position):
            return None
        # numpy.unique would load numpy.ma when it is first called, which takes 40 ms in the middle of a request.
        return np.array(sorted(set(self.since(position))), dtype=np.intp)
