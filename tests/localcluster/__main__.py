"""``make cluster``: a control plane with simulated GPU nodes, for trying things with kubectl, until Ctrl-C."""

import signal
import sys
import time
from types import FrameType

from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.nodes import NodeSpec
from tests.localcluster.processes import ProcessFailed
from tests.localcluster.toolchain import ComponentMissing

# Scheduling mode, cards of a node, nodes of that kind.
TABLE = (("default", 8, 1), ("cgpu", 4, 2), ("core_mem", 4, 1), ("share", 4, 1), ("mps", 2, 1), ("topology", 8, 1))

HELP = """
A Kubernetes control plane runs, with {nodes} simulated nodes (pods are scheduled, but nothing runs them).

    export KUBECONFIG={kubeconfig}
    kubectl get nodes -L ack.node.gpu.schedule
    kubectl run plain --image=example --restart=Never && kubectl get pod plain -o wide
    kubectl delete pod plain --force       # there is no kubelet that would end it

Logs: {directory}/*.log
Ctrl-C ends it and removes everything.
"""


def gpu_nodes() -> list[NodeSpec]:
    """Return the nodes to simulate, by ``TABLE``: the one place that knows what a GPU node looks like."""
    return [
        NodeSpec(name=f"{mode.replace('_', '-')}-{number}", labels={"ack.node.gpu.schedule": mode})
        for mode, _cards, count in TABLE
        for number in range(1, count + 1)
    ]


def start_gputile(plane: ControlPlane) -> str | None:
    """Start gputile's own processes and return the URL of the extender, None while there is none to start."""
    del plane
    return None


def main() -> int:
    """Start everything, say how to use it, and wait."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        print("starting a control plane ...", file=sys.stderr, flush=True)
        with ControlPlane() as plane:
            nodes = gpu_nodes()
            plane.nodes.create_nodes(nodes)
            plane.start_scheduler(start_gputile(plane))
            print(HELP.format(nodes=len(nodes), kubeconfig=plane.kubeconfig(), directory=plane.directory), flush=True)
            _watch(plane)
    except KeyboardInterrupt:
        return 0
    except (ComponentMissing, ProcessFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _watch(plane: ControlPlane) -> None:
    """Wait for Ctrl-C; a process that ends by itself ends all, with the reason."""
    while True:
        for process in plane.processes.values():
            process.check()
        time.sleep(0.5)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
