"""docs/architecture.md names the packages and modules that there are; unit tests lie as the sources do."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gputile"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_/]+)/` \| (.*) \|$", TEXT, re.MULTILINE))
# Words in backticks of the table that name other things than modules.
OTHER = {
    "native/",
    "caBundle",
    "ledger.apply(event)",
    "simulate",
    "explain",
    "inspect",
    "status",
    "nodepool",
    "selftest",
}


def is_package(path: Path) -> bool:
    return (path / "__init__.py").exists() and any(each.stem != "__init__" for each in path.rglob("*.py"))


def test_the_table_has_every_package() -> None:
    top = [path for path in SOURCE.iterdir() if is_package(path)]
    grouped = {"core", "controlplane", "node", "tools"}
    there = {path.name for path in top if path.name not in grouped}
    for name in grouped:
        there |= {f"{name}/{path.name}" for path in (SOURCE / name).iterdir() if is_package(path)}
    assert set(ROWS) == there


def test_src_has_at_most_nine_entries() -> None:
    entries = {path.name for path in SOURCE.iterdir() if is_package(path) or path.suffix == ".py"} - {"__init__.py"}
    assert len(entries) <= 9, sorted(entries)


@pytest.mark.parametrize("package", ROWS)
def test_each_name_in_a_row_is_a_module_of_that_package(package: str) -> None:
    for name in re.findall(r"`([^`]+)`", ROWS[package]):
        if name not in OTHER:
            found = [*(SOURCE / package).rglob(f"{name.rstrip('/')}.py"), *(SOURCE / package).rglob(name.rstrip("/"))]
            assert found, f"{package}/ has no {name}"


def test_modules_beside_packages_are_named() -> None:
    beside = [path for name in ("core", "controlplane", "node", "tools") for path in (SOURCE / name).glob("[!_]*.py")]
    unnamed = [path.name for path in beside if f"`{path.relative_to(SOURCE)}`" not in TEXT]
    assert not unnamed


def test_the_page_of_the_agent_names_what_there_is() -> None:
    """Each name in the table of what decides is of a module, class, function or type of the agent."""
    agent = (ROOT / "docs" / "concepts" / "agent.md").read_text(encoding="utf-8")
    table = agent.partition("| what happens | who decides |")[2].partition("\n\n")[0]
    code = {path.stem: path.read_text(encoding="utf-8") for path in (SOURCE / "node" / "agent").rglob("*.py")}
    there = set(code) | set(
        re.findall(r"^ *(?:async def |def |class )?(\w+)(?: =|\(|:)", "\n".join(code.values()), re.M)
    )
    there |= {"GetPreferredAllocation", "Allocate", "PreStartContainer"}  # calls of the kubelet
    assert [name for name in re.findall(r"`([a-z_A-Z.]+)`", table) if not there.issuperset(name.split("."))] == []


def test_unit_tests_lie_as_the_sources_do() -> None:
    """Each package of tests/unit has its counterpart in src, or in docs for what tests the documentation."""
    tests = Path(__file__).parent
    packages = {path.parent.relative_to(tests) for path in tests.rglob("__init__.py")} - {Path(), Path("docs")}
    assert sorted(str(path) for path in packages if not (SOURCE / path).is_dir()) == []


def test_a_class_name_stands_for_one_thing() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                modules[node.name].add(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
