"""What if says of a pod what the page would show of it if it were there."""

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.tools.web.page.records import TileShare
from gputile.tools.web.serving.questions import Moment, what_if
from tests.fakes.corebuilders import gpu_node

pytestmark = pytest.mark.requirement("B7")

GIB = 1024
WHOLE_GPU_POD = b"""
apiVersion: v1
kind: Pod
metadata: {name: new}
spec:
  containers: [{name: main, image: example, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
OFFERED = {"nvidia.com/gpu": "4", "pods": "110"}


@pytest.mark.parametrize(
    ("replicas", "takes"), [(0, TileShare(0, 15 * GIB, 100)), (4, TileShare(0, 15 * GIB // 4, 25))]
)
def test_a_pod_takes_a_whole_gpu_or_its_turn(replicas: int, takes: TileShare) -> None:
    node = gpu_node("n", sizes=[15 * GIB], replicas=replicas, allocatable=OFFERED)
    found = what_if(WHOLE_GPU_POD, Moment([node], [], Configuration()))
    assert [(each.node, each.shares, each.whole) for each in found.pods] == [("n", (takes,), True)]


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"kind: [", "the pasted manifest, document 1: line 2, column 1: "),
        (b"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "the pasted manifest, document 1: Pod/p: spec"),
        (b"# nothing\n", "the pasted manifest: it holds no object"),
    ],
)
def test_errors_name_what_was_pasted(manifest: bytes, said: str) -> None:
    found = what_if(manifest, Moment([gpu_node("n", sizes=[15 * GIB])], [], Configuration()))
    assert found.error.startswith(said)
