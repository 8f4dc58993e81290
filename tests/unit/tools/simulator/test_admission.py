"""The webhook judges the pods that an API server asks it about, and policies judge all others."""

import json
from pathlib import Path

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError
from gputile.tools.simulator.workloads import Expansion, expand
from tests.unit.tools.simulator.builders import load_text
from tests.unit.tools.simulator.manifests import POD, Json, changed

pytestmark = pytest.mark.requirement("B4", "G2")

PLAIN = changed(POD, "spec.containers.0.resources", {})
MANY = [{"name": f"c{i}", "image": "i"} for i in range(300)]
VARIABLE = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def expanded(tmp_path: Path, body: Json) -> Expansion:
    intake = Intake(Admission(Configuration(), installed_in="gputile"))
    return expand(load_text(tmp_path, json.dumps(body)), [], intake)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.annotations", {"gputile.io/gpu-weight": "heavy"}),
        ("spec.containers", MANY),
    ],
)
def test_a_pod_without_gpus_never_reaches_it(tmp_path: Path, path: str, value: object) -> None:
    assert len(expanded(tmp_path, changed(PLAIN, path, value)).pods) == 1


def test_a_gpu_pod_reaches_it(tmp_path: Path) -> None:
    """Nobody reads a weight of a pod that asks for none."""
    body = changed(POD, "metadata.annotations", {"gputile.io/gpu-weight": "heavy"})
    for limits in ({"nvidia.com/gpu": 1}, {"nvidia.com/mig-1g.5gb": 1}):
        with pytest.raises(ManifestError, match=r"\[gpu-share\]"):
            expanded(tmp_path, changed(body, "spec.containers.0.resources.limits", limits))
    expanded(tmp_path, changed(body, "spec.containers.0.resources.limits", {"nvidia.com/gpu": 0}))


def test_gputiles_own_pods_use_what_nobody_else_may(tmp_path: Path) -> None:
    """The chart exempts the namespace in which it is from the policies about access, and from no other."""
    agent = changed(changed(PLAIN, "spec.containers.0.env", VARIABLE), "metadata.namespace", "gputile")
    assert len(expanded(tmp_path, agent).pods) == 1
    forged = changed(agent, "metadata.annotations", {"gputile.io/allocation": "x"})
    with pytest.raises(ManifestError, match=r"\[forged-allocation\]"):
        expanded(tmp_path, forged)
    with pytest.raises(ManifestError, match=r"\[environment\]"):
        expanded(tmp_path, changed(agent, "metadata.namespace", "other"))
