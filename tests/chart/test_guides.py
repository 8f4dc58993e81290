"""The values that the guides give to Helm are values of the chart, and it refuses what they say that it refuses."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.chart.helmcli import HelmFailed, of_kind, pod_specs, render
from tests.unit.docs.named_commands import shell_commands

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
PAGES = ("getting-started.md", "laptop.md", "install.md", "migrate.md", "troubleshooting.md")


def _values(page: str) -> list[list[str]]:
    """Return what each ``helm install`` or ``helm upgrade`` of gputile on a page sets."""
    text = re.sub(r"^ {4}", "", (GUIDES / page).read_text(encoding="utf-8"), flags=re.MULTILINE)  # a step's block
    found = [shlex.split(command) for command in shell_commands(text)]
    ours = [words for words in found if words[0] == "helm" and "./charts/gputile" in words]
    return [
        [part for option, value in pairwise(words) if option.startswith("--set") for part in (option, value)]
        for words in ours
    ]


@pytest.mark.requirement("U2")
@pytest.mark.parametrize("page", PAGES)
def test_the_chart_renders_with_the_values_of_the_page(page: str) -> None:
    for arguments in _values(page):
        assert render({}, *arguments)


def test_the_pages_that_install_have_values() -> None:
    assert all(_values(page) for page in PAGES[:4])


def test_a_trial_leaves_other_nodes_alone() -> None:
    (arguments,) = _values("migrate.md")
    objects = render({}, *arguments)
    assert pod_specs(objects)["gputile-agent"]["nodeSelector"] == {"gputile.io/trial": "yes"}
    configuration = yaml.safe_load(of_kind(objects, "ConfigMap")["gputile"]["data"]["configuration.yaml"])
    assert configuration["controller"]["taintNodes"] is False
    assert of_kind(objects, "ValidatingAdmissionPolicy").keys() == {"gputile-agent-own-node"}


def test_a_secret_for_the_image_is_set_as_the_page_says() -> None:
    page = (GUIDES / "troubleshooting.md").read_text(encoding="utf-8")
    (value,) = re.findall(r"`(image\.pullSecrets\S+)`", page)
    specs = pod_specs(render({}, "--set", value.replace("NAME", "registry-login")))
    assert all(spec["imagePullSecrets"] == [{"name": "registry-login"}] for spec in specs.values())


def test_an_older_kubernetes_is_refused_in_the_words_of_the_page() -> None:
    page = (GUIDES / "troubleshooting.md").read_text(encoding="utf-8")
    with pytest.raises(HelmFailed) as refused:
        render({}, "--kube-version=v1.29.0")
    said = re.search(r"chart requires kubeVersion: \S+", str(refused.value))
    assert said
    assert said[0] in page
