"""Reads the source files of gputile without executing them."""

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "gputile"
COMPONENTS = ("extender", "controller", "webhook", "agent", "gateway", "arbiter")


@cache
def modules() -> dict[Path, ast.Module]:
    """Return every module that is not generated, by its path below ``src/gputile``."""
    paths = sorted(
        path for path in SOURCE.rglob("*.py") if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    )
    return {path.relative_to(SOURCE): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def strings() -> tuple[tuple[Path, str], ...]:
    """Return each string constant that is not a docstring, with its module."""
    found: list[tuple[Path, str]] = []
    for path, module in modules().items():
        told = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
        for node in ast.walk(module):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in told
            ):
                found.append((path, node.value))
    return tuple(found)


@cache
def calls() -> tuple[tuple[Path, str, ast.Call], ...]:
    """Return each call with its module and the name of the called function or method."""
    return tuple(
        (path, node.func.id if isinstance(node.func, ast.Name) else node.func.attr, node)
        for path, module in modules().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    )


def component(path: Path) -> str:
    """Return the component that a module belongs to, or "" if several components share it."""
    return next((part for part in path.parts if part in COMPONENTS), "")
