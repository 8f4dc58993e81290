"""``python -m benchmarks.growth FILE.svg``: draw what a decision costs against the size of the cluster.

One line a policy; needs matplotlib, the optional extra "plot".
"""

import sys

from benchmarks.clusters import Placement, filled
from benchmarks.core import growth


def main() -> None:
    """Measure and draw."""
    if len(sys.argv) != 2 or not sys.argv[1].endswith((".svg", ".png")):
        sys.exit("usage: python -m benchmarks.growth FILE.svg (or .png)")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("matplotlib is not installed: install gputile[plot]")
    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot(xlabel="nodes (8 GPUs and 10 pods each)", ylabel="filter + rank, median CPU ms")
    policies: tuple[Placement, ...] = ("binpack", "packing")
    for policy in policies:
        points = list(growth(lambda size, policy=policy: filled(size, 10 * size, placement=policy)))  # type: ignore[misc]
        print(policy, ", ".join(f"{size}: {seconds * 1e3:.2f} ms" for size, seconds in points))
        axes.plot([size for size, _ in points], [seconds * 1e3 for _, seconds in points], marker="o", label=policy)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(sys.argv[1], bbox_inches="tight")


if __name__ == "__main__":
    main()
