"""What the chart of the former release was given and wrote is taken as it was: helm upgrade reuses the values."""

from pathlib import Path

import pytest
import yaml

from gputile.api.config.v1alpha1 import load_configuration
from tests.chart.helmcli import of_kind, render

FORMER = Path(__file__).parent / "former"
pytestmark = pytest.mark.requirement("U10")


@pytest.mark.parametrize("values", sorted(FORMER.glob("values-*.yaml")), ids=lambda path: path.stem)
def test_the_chart_takes_all_values_of_a_former_one(values: Path) -> None:
    """People keep a copy of the whole file; what it said is said to the components."""
    there = render({}, f"--values={values}")
    configuration = of_kind(there, "ConfigMap")["gputile"]["data"]["configuration.yaml"]
    said = yaml.safe_load(values.read_text("utf-8"))
    read = load_configuration(yaml.safe_load(configuration))
    assert (read.gpu_memory_unit, read.placement) == (said["gpuMemoryUnit"], said["placement"])
    assert read.gangs.patience_seconds == said["gangs"]["patienceSeconds"]
    assert {each["metadata"]["name"] for each in there if each["kind"] in ("Deployment", "DaemonSet")} == {
        f"gputile-{component}" for component in ("agent", "controller", "scheduler", "webhook")
    }


@pytest.mark.parametrize("file", sorted(FORMER.glob("configuration-*.yaml")), ids=lambda path: path.stem)
def test_a_former_configuration_means_what_it_meant(file: Path) -> None:
    """A component of this release reads the ConfigMap of the former one until helm has written the new one."""
    body = yaml.safe_load(file.read_text("utf-8"))
    read = load_configuration(body)
    assert (read.unit_mib, read.placement, read.max_pods_per_gpu) == (128, "spread", 8)
    assert read.trust.groups == {"vision": ["vision-dev", "vision-prod"]}
    assert (read.features.sharing, read.features.topology) == (True, False)
    assert read.admission.trusted_users == ("system:serviceaccount:gputile:gputile-agent",)
    assert read.gpu_time.namespace_max_weight == {"vision-prod": 9}
    assert (read.gangs.hold_seconds, read.gangs.keep_seconds) == (120, 3600)
    assert (read.controller.taint_nodes, read.controller.agent_silent_seconds) == (False, 60)
