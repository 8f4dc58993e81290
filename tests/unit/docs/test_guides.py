"""The guides name commands, files and options that exist, lead to their evidence, and have a row for each complaint.

tests/e2e/test_local_cluster.py executes the first part of the first page, tests/chart/test_guides.py renders the chart
with the values of the pages that install it.
"""

import re

import pytest
import yaml
from docs.generator.pages import DOCS

from gputile.version import VERSION
from tests.unit.docs.named_commands import shell_commands, unknown_to_gputile

_ROOT = DOCS.parent


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["faq", "getting-started", "laptop", "troubleshooting"])
def test_each_command_exists_with_its_options(name: str) -> None:
    assert unknown_to_gputile(page(f"guides/{name}.md")) == []


def test_each_answer_of_the_faq_links_to_its_evidence() -> None:
    text = page("guides/faq.md") + "\n\n"
    answers = re.findall(r"^\*\*([^*]+)\*\*(.*?)(?=\n\n)", text, re.MULTILINE | re.DOTALL)
    assert len(answers) >= 20
    assert [question for question, answer in answers if not re.search(r"\]\([\w./-]+\.md", answer)] == []


def test_each_warning_of_a_pod_and_condition_of_a_node_has_a_row() -> None:
    rows = dict(re.findall(r"^\| `([\w./]+)` \|(.*)\|$", page("reference/events.md"), re.MULTILINE))
    complaints = [name for name, rest in rows.items() if "Warning" in rest or name.startswith("gputile.io/")]
    assert complaints
    assert [name for name in complaints if f"`{name}`" not in page("guides/troubleshooting.md")] == []


_FIRST, _LAPTOP = page("guides/getting-started.md"), page("guides/laptop.md")


def test_each_target_and_file_of_the_first_pages_is_there() -> None:
    both = _FIRST + _LAPTOP
    targets = {command.split()[1] for command in shell_commands(both) if command.startswith("make ")}
    assert targets == {"cluster", "image"}
    assert [name for name in targets if f"\n{name}: " not in (_ROOT / "Makefile").read_text("utf-8")] == []
    files = set(re.findall(r"(?:examples|charts)/[\w./-]+", both))
    assert [file for file in files if not (_ROOT / file.rstrip(".")).exists()] == []


def test_the_first_pod_is_the_one_in_the_examples() -> None:
    shown = re.search(r"```yaml\n# examples/first-pod.yaml\n(.*?)```", _FIRST, re.DOTALL)
    assert shown
    assert yaml.safe_load(shown[1]) == yaml.safe_load((_ROOT / "examples" / "first-pod.yaml").read_text("utf-8"))


def test_the_archive_is_what_make_image_writes() -> None:
    """Its file, and the repository that the chart is told."""
    program = (_ROOT / "release" / "__main__.py").read_text("utf-8")
    repository = re.search(r'"--repository",[^)]*\bdefault="([^"\s]+)"', program)
    assert repository
    assert f"image.repository={repository[1]}\n" in _LAPTOP
    assert set(re.findall(r"dist/\S+", _LAPTOP)) == {f"dist/gputile-{VERSION}-x86_64.image.tar"}
