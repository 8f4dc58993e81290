"""``make cluster``: a control plane with simulated GPU nodes, for trying things with kubectl, until Ctrl-C."""

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from tests.localcluster.admission import installed
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gomodule import ComponentMissing
from tests.localcluster.gputile import EXAMPLES, MANAGED, WEIGHT, described_nodes, start_controller, start_extender
from tests.localcluster.nodes import PlayedKubelets
from tests.localcluster.played_agents import played_agents
from tests.localcluster.processes import ProcessFailed

# What an installation by Helm has, from which the command line reads the configuration.
_CONFIGURATION = {
    "metadata": {"name": "gputile", "labels": {"app.kubernetes.io/name": "gputile"}},
    "data": {"configuration.yaml": "{apiVersion: gputile.io/v1alpha1, kind: Configuration, gpuMemoryUnit: 1GiB}"},
}

HELP = """
A Kubernetes control plane runs, with gputile's scheduler extender, controller, webhook and policies. It has {nodes}
simulated nodes: pods are admitted, placed and bound as in any cluster, and shown as running, but no container runs, and
what they use of GPUs is invented.

    export KUBECONFIG={kubeconfig} PATH={programs}:$PATH
    kubectl get nodes -L ack.node.gpu.schedule,aliyun.accelerator/nvidia_name
    kubectl apply -f {examples}/workloads.yaml
    kubectl get pods -o wide
    kubectl inspect cgpu                   # -d lists the pods, -o json
    gputile status
    gputile top pods                       # what they use of what they hold
    kubectl apply -f {examples}/too-large.yaml
    kubectl describe pod too-large         # why it is pending: node, GPU and rule
    gputile explain too-large              # each GPU, and what would have to change
    kubectl delete pod too-large

Logs: {directory}/*.log
Ctrl-C ends it and removes everything.
"""


def main() -> int:
    """Start everything, say how to use it, and wait."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell lets what it starts in background ignore SIGINT
        signal.signal(number, _interrupt)
    try:
        print("starting a control plane ...", file=sys.stderr, flush=True)
        with ControlPlane() as plane, ExitStack() as stack:
            nodes = described_nodes(EXAMPLES / "cluster.yaml")
            plane.nodes.create_nodes(nodes)
            print("starting gputile ...", file=sys.stderr, flush=True)
            stack.enter_context(installed(plane))
            start_controller(plane)
            _, url = start_extender(plane)
            plane.api.post("/api/v1/namespaces/gputile/configmaps", _CONFIGURATION)
            plane.start_scheduler(url, bind=True, preempt=True, managed_resources=MANAGED, weight=WEIGHT)
            stack.enter_context(PlayedKubelets(plane.api))
            stack.enter_context(played_agents(plane, nodes))
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
