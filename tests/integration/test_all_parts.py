"""``python -m tests`` (`make test`): parts of the tests beside each other, and what becomes of them."""

from pathlib import Path

import pytest

from tests.__main__ import Part, run

# Each part waits for the other, so that both pass only where they run at once.
BOTH = """
import os, time


def test_the_other_part_runs_too():
    name = os.path.basename(__file__)
    open(__file__ + ".ran", "w").close()
    other = os.path.join(os.path.dirname(__file__), "test_b.py.ran" if name == "test_a.py" else "test_a.py.ran")
    end = time.monotonic() + 60
    while not os.path.exists(other):
        assert time.monotonic() < end
        time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each small run the start of plugins that it does not need."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def part(directory: Path, name: str, text: str) -> Part:
    file = directory / f"test_{name}.py"
    file.write_text(text)
    return Part(name, (str(file), f"--rootdir={directory}", f"--confcutdir={directory}", "--config-file=/dev/null"))


def test_parts_of_a_phase_run_at_once_and_the_next_phase_after_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = [part(tmp_path, name, BOTH) for name in "ab"]
    after = "import pathlib\ndef test_after():\n    assert len([*pathlib.Path(__file__).parent.glob('*.ran')]) == 2\n"
    assert run(first, [part(tmp_path, "c", after)], store=tmp_path / "store") == 0
    said = capfd.readouterr().out.splitlines()
    assert any(line.startswith("a           | ") for line in said)
    assert [line.partition(", 0 skipped")[0] for line in said[-3:]] == [
        f"{name}: passed, 1 tests, 0 failures, 0 errors" for name in "abc"
    ]


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_in_any_part_counts_and_is_told_and_the_others_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], failing: int
) -> None:
    texts = [f"def test_{name}():\n    assert {index != failing}\n" for index, name in enumerate("abc")]
    parts = [part(tmp_path, name, text) for name, text in zip("abc", texts, strict=True)]
    assert run(parts[:2], parts[2:], store=tmp_path / "store") == 1
    said = capfd.readouterr().out
    assert [f"{name}: passed" in said for name in "abc"] == [index != failing for index in range(3)]
    name = "abc"[failing]
    assert f"\n{name}: FAILED, exit status 1, 1 tests, 1 failures" in f"\n{said}"
    failed = f"  test_{name}.test_{name}\n    E       assert False\n    {tmp_path}/test_{name}.py:2: AssertionError\n"
    assert f"{failed}  {tmp_path}/store/{name}/output.txt\n" in said


def test_a_part_that_finds_no_tests_or_cannot_begin_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    parts = [part(tmp_path, "empty", ""), part(tmp_path, "broken", "import nothing_of_that_name\n")]
    assert run(parts, store=tmp_path / "store") == 1
    said = capfd.readouterr().out
    assert "empty: FAILED, exit status 5" in said
    assert "broken: FAILED, exit status 2" in said
