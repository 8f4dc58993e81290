"""Writes what gputile.node.native_layouts describes as C headers, with assertions on every size and offset.

Run by `make layouts`. The headers are committed, so that a C compiler alone builds the library; a test compares them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gputile.node import native_layouts
from gputile.node.arbiter.messages import MessageKind
from gputile.node.native_layouts import Field, Layout

NATIVE: Final = Path(__file__).parent
_TYPES: Final = {"B": "uint8_t", "H": "uint16_t", "I": "uint32_t", "i": "int32_t", "Q": "uint64_t"}
_SIMULATED: Final = "simulated_"


def headers() -> dict[Path, str]:
    """Return what each header has to hold, by its path."""
    simulated = [layout for layout in native_layouts.LAYOUTS if layout.name.startswith(_SIMULATED)]
    shared = [layout for layout in native_layouts.LAYOUTS if layout not in simulated]
    named = {
        name: value for name, value in vars(native_layouts).items() if isinstance(value, int | str) and name.isupper()
    }
    del named["RESERVED"]
    constants = {f"GPUTILE_{name}": value for name, value in named.items() if not name.startswith(_SIMULATED.upper())}
    constants |= {f"ARBITER_{kind.name}": kind.value for kind in MessageKind}
    constants |= {"ARBITER_MESSAGE_BYTES": native_layouts.ARBITER_MESSAGE.size}
    for_simulation = {name: value for name, value in named.items() if name.startswith(_SIMULATED.upper())}
    return {
        NATIVE / "base" / "layouts.h": _header(
            "GPUTILE_LAYOUTS_H", "the container's files and messages", constants, shared
        ),
        NATIVE / "simulated" / "layouts.h": _header(
            "GPUTILE_SIMULATED_LAYOUTS_H", "the simulated machine's file", for_simulation, simulated
        ),
    }


def _header(guard: str, what: str, constants: dict[str, int | str], layouts: list[Layout]) -> str:
    texts = {name: value for name, value in constants.items() if isinstance(value, str)}
    widest = max(map(len, texts), default=0)
    lines = [
        f"/* The form of {what}: what C and Python have in common.",
        " * Made by `make layouts` from src/gputile/node/native_layouts.py, which says what the constants mean. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "enum {",
        *(
            f"    {name} = {hex(value) if name.endswith('MAGIC') else value},"
            for name, value in constants.items()
            if isinstance(value, int)
        ),
        "};",
        *(f'#define {name.ljust(widest)} "{text}"' for name, text in texts.items()),
        "",
    ]
    for layout in layouts:
        lines += _structure(layout)
    return "\n".join([*lines, "#endif", ""])


def _structure(layout: Layout) -> Iterator[str]:
    yield f"struct {layout.name} {{"
    for field in layout.fields:
        yield f"    {_declaration(field)};" + (f" /* {field.meaning} */" if field.meaning else "")
    yield "};"
    yield f'_Static_assert(sizeof(struct {layout.name}) == {layout.size}, "{layout.name}");'
    for name, offset in layout.offsets.items():
        yield f'_Static_assert(offsetof(struct {layout.name}, {name}) == {offset}, "{layout.name}.{name}");'
    yield ""


def _declaration(field: Field) -> str:
    kind = f"struct {field.type.name}" if isinstance(field.type, Layout) else _TYPES[field.type]
    sizes = [size for size in (field.rows, field.count) if size > 1]
    return f"{kind} {field.name}" + "".join(f"[{size}]" for size in sizes)


if __name__ == "__main__":
    for path, content in headers().items():
        path.write_text(content, encoding="utf-8")
