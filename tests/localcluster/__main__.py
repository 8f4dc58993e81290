"""``make cluster``: a control plane with simulated GPU nodes, for trying things with kubectl, until Ctrl-C."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType

from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gputile import EXAMPLES, MANAGED, WEIGHT, described_nodes, start_extender
from tests.localcluster.processes import ProcessFailed
from tests.localcluster.toolchain import ComponentMissing

UNIT = "128MiB"  # what examples/cluster.yaml counts in

HELP = """
A Kubernetes control plane runs, with {nodes} simulated nodes (pods are scheduled, but nothing runs them).

    export KUBECONFIG={kubeconfig} PATH={programs}:$PATH
    kubectl get nodes -L ack.node.gpu.schedule,aliyun.accelerator/nvidia_name
    kubectl apply -f {examples}/cluster-pods.yaml
    kubectl get pods -o wide
    kubectl inspect cgpu                   # -d lists the pods, -o json
    kubectl describe pod too-large         # why it is pending: node, GPU and rule
    kubectl delete pod too-large --force   # there is no kubelet that would end it

Logs: {directory}/*.log
Ctrl-C ends it and removes everything.
"""


def main() -> int:
    """Start everything, say how to use it, and wait."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        print("starting a control plane ...", file=sys.stderr, flush=True)
        with ControlPlane() as plane:
            nodes = described_nodes(EXAMPLES / "cluster.yaml")
            plane.nodes.create_nodes(nodes)
            _, url = start_extender(plane, unit=UNIT)
            plane.start_scheduler(url, bind=True, preempt=True, managed_resources=MANAGED, weight=WEIGHT)
            text = HELP.format(
                nodes=len(nodes),
                kubeconfig=plane.kubeconfig(),
                programs=program_path(plane),
                examples=EXAMPLES,
                directory=plane.directory,
            )
            print(text, flush=True)
            _watch(plane)
    except KeyboardInterrupt:
        return 0
    except (ComponentMissing, ProcessFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def program_path(plane: ControlPlane) -> str:
    """Return what goes before PATH: gputile's programs, kubectl's plugin among them, and the kubectl that was built."""
    found = (Path(sys.executable).parent, plane.programs["kubectl"].parent)
    return ":".join(dict.fromkeys(map(str, found)))


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
