"""Finds the functions of a CUDA driver that the library does not know, without loading the driver."""

import ctypes
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gputile.api.quantity import MIB
from gputile.node.isolation.library import library_path
from gputile.support.files import read_bounded

# ELF-64: gabi.xinuos.com, "Object Files".
_ELF: Final = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS: Final = 11
_MOST_BYTES: Final = 1024 * MIB  # a driver has 100
_UNDEFINED: Final = 0
_FUNCTION: Final = re.compile(r"cu[A-Z]\w+")


class NotADriver(ValueError):
    """The file is not a 64-bit ELF library with functions of the CUDA driver."""


def functions(driver: Path) -> list[str]:
    """Return the driver API's functions that a library exports, sorted.

    Raises:
        NotADriver: it is no such file.
    """
    try:
        content = read_bounded(driver, _MOST_BYTES)
    except OSError as error:
        raise NotADriver(f"{driver} cannot be read: {error.strerror or error}") from error
    if content[: len(_ELF)] != _ELF:
        why = "its first bytes say so" if content else "it is empty"
        raise NotADriver(f"{driver} is not a 64-bit ELF library: {why}")
    try:
        found = sorted({name for name in _exported(content) if _FUNCTION.fullmatch(name)})
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise NotADriver(f"{driver} is a broken ELF library: it was cut off, or its tables lead nowhere") from error
    if not found:
        raise NotADriver(f"{driver} exports no function of the CUDA driver: name the driver's libcuda.so.1")
    return found


def unknown(driver: Path) -> list[str]:
    """Return those that the library knows not, and so refuses.

    Raises:
        NotADriver: the file is none.
        LibraryMissing: this install has no library.
    """
    knows = ctypes.CDLL(str(library_path())).gputile_knows
    knows.restype = ctypes.c_bool
    return [name for name in functions(driver) if not knows(name.encode())]


def _exported(content: bytes) -> Iterator[str]:
    *_, section_at, _, _, _, _, section_size, count, _ = _HEADER.unpack_from(content)
    sections = [_SECTION.unpack_from(content, section_at + i * section_size) for i in range(count)]
    for _, kind, _, _, start, size, link, _, _, entry in sections:
        if kind != _DYNAMIC_SYMBOLS or not entry:
            continue
        names = sections[link][4]
        for at in range(start, start + size, entry):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(content, at)
            if section != _UNDEFINED:
                yield content[names + name : content.index(b"\0", names + name)].decode()
