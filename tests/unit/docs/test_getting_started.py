"""The first page names commands, files and options that exist, and shows what gputile prints.

tests/e2e/test_local_cluster.py executes its first part, tests/chart/test_guides.py renders the chart with its values.
"""

import re

import yaml
from docs.generator.pages import DOCS

from gputile.version import VERSION
from tests.unit.docs.named_commands import shell_commands, unknown_to_gputile

_ROOT = DOCS.parent
_PAGE = (DOCS / "guides" / "getting-started.md").read_text(encoding="utf-8")
_COMMANDS = list(shell_commands(_PAGE))


def test_each_command_of_gputile_exists_with_its_options() -> None:
    assert unknown_to_gputile(_PAGE) == []
    assert unknown_to_gputile("\n".join(_COMMANDS)) == []


def test_each_target_and_file_is_there() -> None:
    targets = {command.split()[1] for command in _COMMANDS if command.startswith("make ")}
    assert targets == {"cluster", "image"}
    assert [name for name in targets if f"\n{name}: " not in (_ROOT / "Makefile").read_text("utf-8")] == []
    files = set(re.findall(r"(?:examples|charts)/[\w./-]+", _PAGE))
    assert [file for file in files if not (_ROOT / file.rstrip(".")).exists()] == []


def test_the_first_pod_is_the_one_in_the_examples() -> None:
    shown = re.search(r"```yaml\n# examples/first-pod.yaml\n(.*?)```", _PAGE, re.DOTALL)
    assert shown
    assert yaml.safe_load(shown[1]) == yaml.safe_load((_ROOT / "examples" / "first-pod.yaml").read_text("utf-8"))


def test_the_archive_is_what_make_image_writes() -> None:
    """Its file, and the repository that the chart is told."""
    program = (_ROOT / "release" / "__main__.py").read_text("utf-8")
    repository = re.search(r'"--repository",[^)]*\bdefault="([^"\s]+)"', program)
    assert repository
    assert f"image.repository={repository[1]}\n" in _PAGE
    assert set(re.findall(r"dist/\S+", _PAGE)) == {f"dist/gputile-{VERSION}-x86_64.image.tar"}
