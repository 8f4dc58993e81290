"""Bounds what is kept for later questions: the answers that were asked for last."""

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LastAsked(OrderedDict[Key, Value]):
    """Values by keys, of which those stay that were asked for last."""

    def find(self, key: Key, make: Callable[[], Value], most: int) -> Value:
        """Return the value of a key, a new one if there is none; at most ``most`` stay."""
        found = self.get(key)
        if found is None:
            found = self[key] = make()
            if len(self) > most:
                self.popitem(last=False)
        else:
            self.move_to_end(key)
        return found
