"""How much memory each process takes over time, and whether it has grown."""

from dataclasses import dataclass, field

WARM_AFTER_S = 90.0  # of a process's life
LEAST_S = 240.0  # what one has to have lived to be judged
FACTOR, ROOM_MIB = 1.3, 16.0


@dataclass
class Memory:
    """Samples by component: seconds since the beginning, process ID, MiB."""

    samples: dict[str, list[tuple[float, int, float]]] = field(default_factory=dict)

    def sample(self, found: dict[str, tuple[int, float]], now: float) -> None:
        """Note what was found."""
        for name, (pid, mib) in found.items():
            self.samples.setdefault(name, []).append((now, pid, mib))

    def lives(self) -> dict[str, list[tuple[float, float, float, float]]]:
        """Return of each component's processes how long each lived, and its MiB when warm, at its end, and at most."""
        found: dict[str, list[tuple[float, float, float, float]]] = {}
        for name, samples in self.samples.items():
            by_pid: dict[int, list[tuple[float, float]]] = {}
            for at, pid, mib in samples:
                by_pid.setdefault(pid, []).append((at, mib))
            for series in by_pid.values():
                begun = series[0][0]
                warm = next((mib for at, mib in series if at >= begun + WARM_AFTER_S), series[-1][1])
                life = (series[-1][0] - begun, warm, series[-1][1], max(mib for _, mib in series))
                found.setdefault(name, []).append(life)
        return found

    def grown(self, now: float) -> list[str]:
        """Return which processes that lived long enough take more at their end than when they had warmed up."""
        return [
            f"{name} took {warm:.0f} MiB after {WARM_AFTER_S:.0f} s, and {last:.0f} MiB after {lived:.0f} s"
            for name, lives in self.lives().items()
            for lived, warm, last, _ in lives
            if lived >= LEAST_S and last > FACTOR * warm + ROOM_MIB
        ]
