"""What one rank of the extender counts beside kube-scheduler's own scores, where people see it."""

from pathlib import Path

import pytest
import yaml

from gputile.tools.simulator.simulation import RANK_WEIGHT

pytestmark = pytest.mark.requirement("C2")

ROOT = Path(__file__).resolve().parents[4]
# The weights of the plugins of kube-scheduler 1.36 that score and are on by default, with the sum of 15
# (pkg/scheduler/apis/config/v1/default_plugins.go; VolumeBinding has no weight there, which counts as 1).
PLUGINS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "DynamicResources": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "VolumeBinding": 1,
}
PER_RANK = 100 // 10  # MaxNodeScore by MaxExtenderPriority


def test_one_rank_outweighs_all_own_scores() -> None:
    manifest = yaml.safe_load((ROOT / "examples" / "extender" / "scheduler.yaml").read_text(encoding="utf-8"))
    (weight,) = {extender["weight"] for extender in manifest["extenders"]}
    assert weight * PER_RANK > 100 * sum(PLUGINS.values())
    assert weight * PER_RANK == RANK_WEIGHT
    chart = (ROOT / "charts" / "gputile" / "templates" / "_scheduler.tpl").read_text(encoding="utf-8")
    assert f"weight: {weight}\n" in chart
    assert f"`weight: {weight}`" in (ROOT / "docs" / "guides" / "extender.md").read_text(encoding="utf-8")
