"""Draws allocated and fragmented GPU against the demand that arrived, one line a policy."""

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gputile.tools.replay.engine import Trail

FORMATS = (".svg", ".png")


class PlotError(Exception):
    """A plot that cannot be drawn; the text says what to do."""


def require(path: Path) -> None:
    """Check, before the work is done, that a plot can be drawn into this file.

    Raises:
        PlotError: it cannot.
    """
    if path.suffix not in FORMATS:
        raise PlotError(f"{path}: the file's name should end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise PlotError(f"{path}: no such directory")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotError("plots need matplotlib; install it with: pip install 'gputile[plot]'") from None
    except (OSError, ValueError) as error:  # of its own settings
        raise PlotError(f"matplotlib cannot be used; look at MPLBACKEND and its matplotlibrc: {error}") from None
    was_there = path.exists()
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666))
    except OSError as error:
        raise PlotError(f"{path}: {error.strerror}") from None
    if not was_there:
        path.unlink()


def draw(path: Path, trails: Sequence[tuple[str, str, Trail]]) -> None:
    """Draw replays, each with its workload and policy: a column a workload, seeds of one policy averaged.

    Raises:
        PlotError: the file cannot be written; half of it does not stay.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(workload for workload, _, _ in trails))
    figure = Figure(figsize=(1 + 4.5 * len(names), 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(names), squeeze=False, sharex=True, sharey="row")
    for column, name in enumerate(names):
        for policy in dict.fromkeys(policy for workload, policy, _ in trails if workload == name):
            mine = [trail for workload, each, trail in trails if (workload, each) == (name, policy)]
            for row, values in enumerate(([t.allocated for t in mine], [t.fragmented for t in mine])):
                axes[row][column].plot(*_mean([t.arrived for t in mine], values), label=policy)
        axes[0][column].set_title(name)
        axes[1][column].set_xlabel("demand that arrived, % of the GPUs")
        for row in range(2):
            axes[row][column].grid(alpha=0.3)
    axes[0][0].set_ylabel("allocated, % of the GPUs")
    axes[1][0].set_ylabel("fragmented, % of the GPUs")
    axes[0][0].legend()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix.removeprefix("."))
    try:
        path.write_bytes(drawn.getvalue())
    except OSError as error:
        if path.is_file():
            path.unlink()
        raise PlotError(f"{path}: {error.strerror}") from None


def _mean(arrived: list[list[float]], values: list[list[float]]) -> tuple[list[float], list[float]]:
    """Average over seeds on the grid of the shortest one."""
    grid = min(arrived, key=lambda each: each[-1])
    return grid, np.mean([np.interp(grid, x, y) for x, y in zip(arrived, values, strict=True)], axis=0).tolist()
