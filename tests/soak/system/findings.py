"""What went wrong, each with the story that led to it, and what was only counted."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

STORY_S = 120.0


@dataclass(frozen=True)
class Violation:
    """A promise that was broken ``at`` so many seconds after the beginning."""

    at: float
    promise: str
    text: str
    story: tuple[str, ...]


@dataclass
class Findings:
    """May be used from several threads. ``story_of`` tells what is known of a pod; ``faults`` what was done lately."""

    begun: float = field(default_factory=time.monotonic)
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    longest: dict[str, tuple[float, str]] = field(default_factory=lambda: defaultdict(lambda: (0.0, "")))
    story_of: Callable[[str], list[str]] = lambda key: []
    faults: Callable[[float], list[str]] = lambda since: []
    _known: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.begun

    def count(self, what: str, by: int = 1) -> None:
        """Add to a number of the report."""
        with self._lock:
            self.counts[what] += by

    def lasted(self, what: str, seconds: float, which: str) -> None:
        """Note how long something took; the longest is kept."""
        with self._lock:
            if seconds > self.longest[what][0]:
                self.longest[what] = (seconds, which)

    def violated(self, promise: str, text: str, pods: Iterable[str] = (), *, key: str = "") -> None:
        """Note a broken promise, once for each ``key`` (the text where none is given)."""
        with self._lock:
            if (promise + (key or text)) in self._known:
                return
            self._known.add(promise + (key or text))
            at = self.now()
            story = list(self.faults(at - STORY_S))
            for pod in pods:
                story += [f"{pod}: {line}" for line in self.story_of(pod)]
            self.violations.append(Violation(at, promise, text, tuple(story[:400])))

    def broken(self) -> bool:
        """Return whether any promise was broken."""
        return bool(self.violations)
