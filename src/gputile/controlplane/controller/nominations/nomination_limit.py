"""Counts how nominations end, and tells how many may be under way. No I/O, no clock."""

from typing import Final

MOST_UNDER_WAY: Final = 500
_LEAST_UNDER_WAY: Final = 16
_ONE_IN: Final = 10  # more than one of so many that expire is too much


class NominationLimit:
    """``most`` is halved while more than a tenth of the nominations expire, as they keep room from others in vain.

    It is looked at anew once as many have ended as may be under way, and doubled again where fewer expired.
    """

    def __init__(self) -> None:
        self.most = MOST_UNDER_WAY
        self._ended = 0
        self._expired = 0

    def ended(self, *, expired: bool) -> None:
        """Note that a nomination has ended: it has expired, or its pod is bound."""
        self._ended += 1
        self._expired += expired
        if self._ended < self.most:
            return
        if self._expired * _ONE_IN > self._ended:
            self.most = max(self.most // 2, _LEAST_UNDER_WAY)
        else:
            self.most = min(self.most * 2, MOST_UNDER_WAY)
        self._ended = self._expired = 0
