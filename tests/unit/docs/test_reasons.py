"""Events, conditions and exit codes: what the code says is on their pages, and nothing else is."""

import ast
import re

from docs.generator.pages import DOCS
from docs.generator.source import component, modules, strings

_CAMEL = re.compile(r"(?:[A-Z][a-z]+){2,}|GPU[A-Z][a-z]+|NoGPUFits|InvalidGPURequest|Preempt(?:ed|ing)")
_ROW = re.compile(r"^\| `(?P<name>[\w./]+)` \|(?P<rest>.*)\|$", re.MULTILINE)
# Modules that write neither events nor conditions, and words of Kubernetes and of the kubelet's protocol elsewhere.
_NOT_OURS = ("tools", "cli", "api", "kube", "core/kube_predicates", "node/gateway/protocols")
_WORDS = {"EventSet", "GetDevicePluginOptions", "GetPreferredAllocation", "ListAndWatch", "PreStartContainer"}
_WORDS |= {"DoesNotExist", "NoExecute", "NoSchedule", "NotIn", "RuntimeDefault", "StartResponse"}


def rows(page: str) -> dict[str, str]:
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    return {match["name"]: match["rest"] for match in _ROW.finditer(text)}


def reasons() -> dict[str, set[str]]:
    """Return the reasons in the code, with the components that use them."""
    types = {node.name for module in modules().values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    found: dict[str, set[str]] = {}
    for path, text in strings():
        if _CAMEL.fullmatch(text) and not str(path).startswith(_NOT_OURS) and text not in types | _WORDS:
            found.setdefault(text, set()).add(component(path) or path.parts[1])
    return found


def test_each_reason_is_on_one_of_the_pages() -> None:
    events, conditions = rows("events"), rows("conditions")
    assert sorted({*reasons()} - {*events, *conditions}) == []


def test_each_reason_on_a_page_is_in_the_code() -> None:
    written = {text for _, text in strings()}
    assert [name for page in ("events", "conditions") for name in rows(page) if name not in written] == []


def test_who_writes_an_event_is_on_its_page() -> None:
    found = reasons()
    for name, rest in rows("events").items():
        assert set(rest.split("|")[1].strip().split(", ")) == found[name], name


def test_each_condition_is_on_its_page() -> None:
    in_code = {text for _, text in strings() if re.fullmatch(r"gputile\.io/[A-Z]\w+", text)}
    on_page = {name for name in rows("conditions") if name.startswith("gputile.io/")}
    assert on_page == in_code


def test_each_reason_names_conditions_that_exist() -> None:
    conditions = rows("conditions")
    for name, rest in conditions.items():
        if not name.startswith("gputile.io/"):
            for each in re.findall(r"`(\w+)`", rest.split("|")[0]):
                assert f"gputile.io/{each}" in conditions, name


def test_each_exit_code_is_on_its_page() -> None:
    """What commands leave with are constants of the command line's modules."""
    command_line = [module for path, module in modules().items() if path.parts[0] == "cli"]
    constants = {
        ast.unparse(node.targets[0]): node.value.value
        for module in command_line
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) is int
    }
    left_with = {
        argument.id
        for module in command_line
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "fail")
        for argument in node.args
        if isinstance(argument, ast.Name)
    }
    page = (DOCS / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    on_page = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert on_page == {constants[name] for name in left_with & {*constants}} | {0, constants["BAD_INPUT"]}
