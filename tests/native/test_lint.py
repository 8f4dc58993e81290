"""`make lint-c` finds what it is there for; that the C code is clean is for it to say."""

from pathlib import Path

import pytest
from hatch_build import ROOT

from native import lint

CALLS = "    g();\n" * 71
FAULTS = {
    "shadow": ("int f(int a);\nint f(int a) { { int a = 1; return a; } }\n", "shadow"),
    "conversion": ("int f(long a);\nint f(long a) { return a; }\n", "conversion"),
    "sign, clang only": ("enum e { A };\nenum e f(int a);\nenum e f(int a) { return a; }\n", "sign-conversion"),
    "null": ("int f(void);\nint f(void) { int *p = 0; return *p; }\n", "clang-analyzer-core.NullDereference"),
    "unused include": ("#include <math.h>\nint f(void);\nint f(void) { return 1; }\n", "misc-include-cleaner"),
    "long": (f"void g(void);\nvoid f(void);\nvoid f(void) {{\n{CALLS}}}\n", "readability-function-size"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    code, named = FAULTS[fault]
    monkeypatch.setattr(lint, "SOURCES", tmp_path)
    path = tmp_path / "fault.c"
    path.write_text(f"/* A fault. */\n{code}")
    (tmp_path / ".clang-tidy").write_bytes((ROOT / ".clang-tidy").read_bytes())
    assert named in lint.check(path)
    path.write_text("/* Clean. */\nint f(void);\nint f(void) { return 1; }\n")
    assert lint.check(path) == ""


def test_form_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "form.c"
    (tmp_path / ".clang-format").write_bytes((ROOT / ".clang-format").read_bytes())
    path.write_text("int f(void){return 1;}\n")
    assert "clang-format-violations" in lint.check_form([path])
