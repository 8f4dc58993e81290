"""docs/architecture.md is short and names what there is; unit tests lie as the sources do."""

import ast
import configparser
import graphlib
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gputile"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_/]+)/` \| (.*) \|$", TEXT, re.MULTILINE))
TWO_PAGES = 1250  # words
# Words in backticks of the text that name other things than modules and types of the code.
OTHER = {"pods/binding", "GPU-4c8e...::412", "make imports", "resourceVersion", "Allocate", "share"}


@cache
def tree(path: Path) -> ast.Module:
    """Return a module, which several tests look at."""
    return ast.parse(path.read_text(encoding="utf-8"))


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


def test_a_package_is_seen_at_a_glance() -> None:
    """A package has at most 30 modules of its own; what grows beyond that is grouped in packages."""
    modules = {path: len(list(path.glob("*.py"))) - 1 for path in SOURCE.rglob("*") if is_package(path)}
    assert {str(path): count for path, count in modules.items() if count > 30} == {}


def test_the_table_runs_down_the_layers() -> None:
    """Within the core, and over the whole tree, the rows stand in the order in which .importlinter has the layers."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    for prefix, contract, depth in (("gputile.", "layers", 0), ("", "core", 1)):
        layers = contracts[f"importlinter:contract:{contract}"]["layers"].split("\n")
        rank = {name.strip(): number for number, layer in enumerate(layers) for name in layer.split("|")}
        rows = [row.split("/") for row in ROWS if not depth or row.startswith(f"{contract}/")]
        order = [rank[prefix + parts[depth]] for parts in rows]
        assert order == sorted(order), contract


def test_a_newcomer_reads_two_pages() -> None:
    assert len(re.findall(r"\S*\w\S*", TEXT)) <= TWO_PAGES


def test_each_name_in_the_text_is_there() -> None:
    """Names in backticks are paths of the repository, packages, modules, or types and attributes in them."""
    code = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    there = set(re.findall(r"^ *(?:async def|def|class|type) (\w+)", "\n".join(code), re.MULTILINE))
    there |= {path.stem for path in SOURCE.rglob("*") if path.suffix == ".py" or is_package(path)}
    names = {name for name in re.findall(r"`([^`]+)`", TEXT) if name.rstrip("/") not in OTHER}
    paths = {name for name in names if "/" in name or name.startswith(".")}
    assert [name for name in paths if not ((ROOT / name).exists() or (SOURCE / name).exists())] == []
    assert [name for name in names - paths if not there.issuperset(name.split("."))] == []


def test_the_docstring_of_each_module_says_what_it_does() -> None:
    """The first line is at most 100 characters long and begins with a verb: "Decides whether ...", no "Whether ..."."""
    texts = {path: ast.get_docstring(tree(path)) for path in SOURCE.rglob("*.py")}
    lines = {str(path): text.partition("\n")[0] for path, text in texts.items() if text and "_pb2" not in path.name}
    assert [path for path, line in lines.items() if not re.match("[A-Z][a-z]+s ", line) or len(line) > 100] == []


def test_unit_tests_lie_as_the_sources_do() -> None:
    """Each package of tests/unit has its counterpart in src, or in the root: docs and benchmarks."""
    tests = Path(__file__).parent
    packages = {path.parent.relative_to(tests) for path in tests.rglob("__init__.py")}
    assert sorted(str(each) for each in packages if not any((at / each).is_dir() for at in (SOURCE, ROOT))) == []


def test_a_class_name_stands_for_one_thing() -> None:
    """Nor does a class of one module have the name of another module's with an underscore before it."""
    modules: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                modules[node.name.lstrip("_")].add(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of ours that a module imports, also within functions, but not for types alone."""
    module = tree(path)
    typing = {
        id(each)
        for node in ast.walk(module)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for each in ast.walk(statement)
    }
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) or ({node.module} & modules)
        elif isinstance(node, ast.Import) and id(node) not in typing:
            found |= {alias.name for alias in node.names} & modules
    return found


def test_no_imports_run_in_a_circle() -> None:
    """No module needs itself by way of others, not even by imports within functions."""
    paths = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    needs = {name: imports_of(path, set(paths)) - {name} for name, path in paths.items()}
    assert needs["gputile.cli.options"] >= {"gputile.cli.terminal"}, "imports are found"
    assert needs["gputile.cli.commands.services"] >= {"gputile.kube.config"}, "those within functions, too"
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError, which names the modules


def test_the_agents_state_is_changed_in_few_places() -> None:
    """What loops, answers and touches the world assigns nothing of the state itself."""
    agent, found = SOURCE / "node" / "agent", []
    for path in agent.rglob("*.py"):
        if path.stem in {"allocation_state", "holdings", "allocation", "advertise", "allocation_files"}:
            continue
        for node in ast.walk(tree(path)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else targets
            for each in (leaf for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Attribute)):
                if re.search(r"(^|[._])state\.", ast.unparse(each)):
                    found.append(f"{path.relative_to(SOURCE)}:{each.lineno}: {ast.unparse(each)}")
    assert found == []


def test_a_function_has_at_most_72_lines() -> None:
    """A command's options are an object (``takes``), so what it does fits a screen, too."""
    long = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "_pb2" not in path.name:
                long += [f"{path}: {node.name}"] if (node.end_lineno or 0) - node.lineno >= 72 else []
    assert long == []
