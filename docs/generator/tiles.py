"""The picture of a cluster's GPUs and the pods on them, from what ``gputile simulate -o json`` prints."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from docs.generator.drawing import Drawing

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("simulate", "--cluster", "examples/cluster.yaml", "-f", "examples/workloads.yaml", "-o", "json")
_TILE, _GAP, _LEFT, _HEIGHT = 78, 6, 150, 40
_COLOURS = ("#0f766e", "#2563a8", "#6d4bb8", "#b45309", "#9d3c6e", "#4d7c0f", "#56616f")


def simulated() -> Any:
    """Return what the command prints.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    run = (sys.executable, "-c", "from gputile.cli.main import main; main()", *COMMAND)
    return json.loads(subprocess.run(run, cwd=ROOT, check=True, capture_output=True).stdout)


def cluster() -> str:
    """Draw each node's GPUs, filled as far as they are allocated, a colour for each workload."""
    nodes = simulated()["nodes"]
    drawing = Drawing(
        _LEFT + 8 * (_TILE + _GAP) + 10, 44 + (_HEIGHT + 12) * len(nodes), "The GPUs of each node, and the pods on them"
    )
    drawing.words(10, 22, "gputile simulate --cluster examples/cluster.yaml -f examples/workloads.yaml", bold=True)
    workloads: dict[str, str] = {}
    for row, node in enumerate(nodes):
        y = 40 + (_HEIGHT + 12) * row
        drawing.words(10, y + 18, node["name"], bold=True)
        drawing.words(10, y + 34, node["mode"])
        for gpu in node["gpus"]:
            x = _LEFT + (_TILE + _GAP) * gpu["index"]
            drawing.outline(x, y, _TILE, _HEIGHT)
            at = float(x)
            for pod in node["pods"]:
                mib = pod["mib"].get(str(gpu["index"]))
                if mib is None:
                    continue
                width = _TILE if pod["whole"] else _TILE * mib / gpu["totalMib"]
                name = pod["name"].rsplit("-", 1)[0] if node["shared"] else pod["name"]
                colour = workloads.setdefault(name, _COLOURS[len(workloads) % len(_COLOURS)])
                drawing.area(at, y, width, _HEIGHT, colour, f"{pod['name']}: {mib} MiB")
                at += width
    return drawing.svg()
