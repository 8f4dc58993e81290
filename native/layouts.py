"""Writes C headers of the structures that C and Python share, and asserts each size and offset.

`make layouts` runs this module. gputile.node.native_layouts defines the constants. The headers are
committed, so that the library can be built with only a C compiler. A test compares them with the
output of this module.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gputile.node import native_layouts
from gputile.node.arbiter.messages import MessageKind
from gputile.node.native_layouts import MOST_GPUS, USAGE_SLOTS

NATIVE: Final = Path(__file__).parent
_TYPES: Final = {"B": "uint8_t", "H": "uint16_t", "I": "uint32_t", "i": "int32_t", "Q": "uint64_t"}


@dataclass(frozen=True)
class Field:
    """A field of a structure, which consists of ``rows`` of ``count`` values.

    ``type`` is a letter of Python's ``struct``, or a structure.
    """

    name: str
    type: "str | Layout"
    count: int = 1
    meaning: str = ""
    rows: int = 1

    @property
    def size(self) -> int:
        """The size in bytes."""
        return (
            self.rows
            * self.count
            * (
                self.type.size
                if isinstance(self.type, Layout)
                else struct.calcsize(f"<{self.type}")
            )
        )


@dataclass(frozen=True)
class Layout:
    """A structure that C and Python share. It has no implicit padding."""

    name: str
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(field.size for field in self.fields)

    @property
    def offsets(self) -> dict[str, int]:
        """The offset of each field in bytes."""
        found, at = {}, 0
        for field in self.fields:
            found[field.name] = at
            at += field.size
        return found

    @property
    def struct(self) -> struct.Struct:
        """The format for Python's ``struct``, in which an array of bytes is one value.

        Raises ValueError if the structure contains structures.
        """
        letters = []
        for field in self.fields:
            if isinstance(field.type, Layout):
                raise ValueError(f"{self.name} contains structures")
            letters.append(
                f"{field.count}{'s' if field.type == 'B' and field.count > 1 else field.type}"
            )
        return struct.Struct("<" + "".join(letters))


ARBITER_MESSAGE: Final = Layout(
    "arbiter_message",
    (
        Field("kind", "B"),
        Field("version", "B"),
        Field("gpu", "H"),
        Field("turn", "I"),
        Field("a", "Q"),
        Field("b", "Q"),
        Field("unused", "Q"),
    ),
)

USAGE_SLOT: Final = Layout(
    "gputile_usage_slot",
    (
        Field(
            "pid",
            "i",
            meaning="in the PID namespace of the container, or 0 if the slot is free",
        ),
        Field("unused", "I"),
        Field("started", "Q", meaning="clock ticks after boot, /proc/<pid>/stat"),
    ),
)
USAGE: Final = Layout(
    "gputile_usage",
    (
        Field("magic", "I"),
        Field("version", "I"),
        Field("top", "I", meaning="slots from this number on were never used"),
        Field(
            "counts",
            "I",
            meaning="1 if `peak` and `refused` are counted, which older libraries do not",
        ),
        Field("slot", USAGE_SLOT, USAGE_SLOTS),
        Field("used", "Q", USAGE_SLOTS, "bytes", rows=MOST_GPUS),
        Field("word", "Q", MOST_GPUS, "the container's account of each GPU's time"),
        Field("peak", "Q", MOST_GPUS, "the most bytes that were in use at the same time"),
        Field(
            "refused", "Q", MOST_GPUS, "the number of requests for memory that the limit refused"
        ),
        Field(
            "context",
            "Q",
            MOST_GPUS,
            "the fewest bytes that a process's first context used, or 0 if unknown",
        ),
    ),
)

SIMULATED_MAGIC: Final = 0x64756366
SIMULATED_MOST_GPUS: Final = 8
SIMULATED_MOST_PROCESSES: Final = 256

SIMULATED_HEADER: Final = Layout(
    "simulated_header",
    (Field("magic", "I"), Field("gpus", "I"), Field("driver_version", "I"), Field("unused", "I")),
)
SIMULATED_GPU: Final = Layout(
    "simulated_gpu",
    (
        Field("uuid", "B", 16),
        Field("total", "Q", meaning="bytes"),
        Field("used", "Q"),
        Field("peak", "Q", meaning="the most bytes that were in use"),
        Field("context_bytes", "Q", meaning="the bytes that a context uses"),
        Field("module_bytes", "Q", meaning="the bytes that a loaded module uses"),
        Field(
            "free_at_ns",
            "Q",
            meaning="when the GPU has finished all submitted work (CLOCK_MONOTONIC)",
        ),
        Field("busy_ns", "Q"),
        Field("launches", "Q"),
        Field("bytes_per_us", "Q", meaning="the speed of memory copies, or 0 if they take no time"),
    ),
)
SIMULATED_PROCESS: Final = Layout(
    "simulated_process",
    (
        Field("pid", "i"),
        Field("unused", "I"),
        Field("used", "Q", SIMULATED_MOST_GPUS, "bytes"),
        Field("busy_ns", "Q", SIMULATED_MOST_GPUS),
        Field("launches", "Q"),
    ),
)
SIMULATED_MACHINE: Final = Layout(
    "simulated_machine",
    (
        Field("header", SIMULATED_HEADER),
        Field("gpu", SIMULATED_GPU, SIMULATED_MOST_GPUS),
        Field("process", SIMULATED_PROCESS, SIMULATED_MOST_PROCESSES),
    ),
)


def headers() -> dict[Path, str]:
    """Return the content of each header by its path."""
    constants = {
        f"GPUTILE_{name}": value for name, value in _constants(vars(native_layouts)).items()
    }
    constants |= {f"ARBITER_{kind.name}": kind.value for kind in MessageKind}
    constants |= {"ARBITER_MESSAGE_BYTES": ARBITER_MESSAGE.size}
    simulated = {
        name: value
        for name, value in _constants(globals()).items()
        if name.startswith("SIMULATED_")
    }
    return {
        NATIVE / "base" / "layouts.h": _header(
            "GPUTILE_LAYOUTS_H",
            "the container's files and messages",
            "native/layouts.py and src/gputile/node/native_layouts.py",
            constants,
            [ARBITER_MESSAGE, USAGE_SLOT, USAGE],
        ),
        NATIVE / "simulated" / "layouts.h": _header(
            "GPUTILE_SIMULATED_LAYOUTS_H",
            "the simulated machine's file",
            "native/layouts.py",
            simulated,
            [SIMULATED_HEADER, SIMULATED_GPU, SIMULATED_PROCESS, SIMULATED_MACHINE],
        ),
    }


def _constants(names: Mapping[str, object]) -> dict[str, int | str]:
    return {
        name: value
        for name, value in names.items()
        if isinstance(value, int | str) and name.isupper()
    }


def _header(
    guard: str, what: str, source: str, constants: dict[str, int | str], layouts: list[Layout]
) -> str:
    texts = {name: value for name, value in constants.items() if isinstance(value, str)}
    widest = max(map(len, texts), default=0)
    lines = [
        f"/* The layout of {what}, which C and Python share.",
        f" * Generated by `make layouts` from {source}. */",
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
        yield (
            f"_Static_assert(offsetof(struct {layout.name}, {name}) == {offset}, "
            f'"{layout.name}.{name}");'
        )
    yield ""


def _declaration(field: Field) -> str:
    kind = f"struct {field.type.name}" if isinstance(field.type, Layout) else _TYPES[field.type]
    sizes = [size for size in (field.rows, field.count) if size > 1]
    return f"{kind} {field.name}" + "".join(f"[{size}]" for size in sizes)


if __name__ == "__main__":
    for path, content in headers().items():
        path.write_text(content, encoding="utf-8")
