"""Reads the scalars of YAML as Kubernetes does: go-yaml v2 beneath sigs.k8s.io/yaml, then JSON.

"yes" and "y" are bools; "0o17", "017", "1_000" and "1e3" are numbers, and so is "08". Numbers that are too large for
64 bits, timestamps and sexagesimal numbers stay text. Keys are strings, whatever stands there.
"""

import base64
import ctypes
import math
import re
from typing import Final

Scalar = None | bool | int | float | str

_WORDS: Final[dict[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **{form: True for word in ("y", "yes", "true", "on") for form in (word, word.capitalize(), word.upper())},
    **{form: False for word in ("n", "no", "false", "off") for form in (word, word.capitalize(), word.upper())},
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_TAGS: Final = {
    "null": (type(None), "null"),
    "bool": (bool, "a boolean"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
}
_INTEGER: Final = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]{0,19})", re.ASCII)
_SIGNED_BITS: Final = re.compile(r"0b([-+][01]+)", re.ASCII)
_DECIMAL: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_FRACTION: Final = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+(_[0-9]+)*)?", re.ASCII)
_SIGNED: Final = 1 << 63
_EXACT: Final = 1e21  # JSON as Go writes it gives larger numbers an exponent, which is no integer's form


class ScalarError(ValueError):
    """A scalar is not what its tag says, or has no form in JSON."""


def read_scalar(text: str, tag: str) -> Scalar:
    """Return the value of a scalar; ``tag`` is its own without the prefix, as "int", or "" where it has none.

    Raises:
        ScalarError: it is not of its tag, or JSON has no form for it.
    """
    value = _resolve(text, tag)
    return as_json(value) if isinstance(value, float) else value


def read_key(text: str, tag: str) -> str:
    """Return the key that a scalar is.

    Raises:
        ScalarError: it is not of its tag, or null.
    """
    value = _resolve(text, tag)
    if value is None or (type(value) is int and value >= _SIGNED):
        raise ScalarError("a key must be a string, this one is " + ("empty" if value is None else "a large number"))
    if isinstance(value, bool):
        return str(value).lower()
    return _float_key(value) if isinstance(value, float) else str(value)


def as_json(number: float) -> int | float:
    """Return a number as JSON has it: an integer where it has no fraction.

    Raises:
        ScalarError: JSON has no such number.
    """
    if not math.isfinite(number):
        raise ScalarError(f"{number} is no finite number")
    return int(number) if abs(number) < _EXACT and number.is_integer() else number


def _resolve(text: str, tag: str) -> Scalar:
    if tag == "binary":
        return _binary(text)
    if tag and tag not in _TAGS:
        return text  # so kubectl reads it, whatever the tag says
    value = _plain(text)
    if not tag:
        return value
    type_, what = _TAGS[tag]
    if tag == "float" and type(value) is int:
        return float(value)
    if type(value) is not type_:
        raise ScalarError(f"{text[:40]!r} is not {what}")
    return value


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True).decode()
    except ValueError as error:  # of UTF-8, too: JSON has no other texts
        raise ScalarError(f"{text[:40]!r} is no text in base64") from error


def _plain(text: str) -> Scalar:
    """Return what a text without quotes is."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == ".":
        found = _finite(text) if _FRACTION.fullmatch(text) else None
    elif text[0] in "+-0123456789":
        found = _number(text.replace("_", ""))
    else:
        found = None
    return text if found is None else found


def _number(text: str) -> int | float | None:
    """Return the number that a text is, None where it is none or too large for one."""
    if _INTEGER.fullmatch(text):
        digits = text.lstrip("+-")
        octal = digits.startswith("0") and digits.isdecimal()
        number = int(text, 8 if octal else 0)
        if -_SIGNED <= number < _SIGNED * (1 if text[0] == "+" else 2):
            return number
    if _DECIMAL.fullmatch(text):
        return _finite(text)
    bits = _SIGNED_BITS.fullmatch(text)
    return int(bits[1], 2) if bits and len(bits[1]) <= 64 else None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _float_key(value: float) -> str:
    """Return a float as a key: the shortest digits that tell it from others of 32 bits, an exponent from 1e+06 on."""
    single = ctypes.c_float(value).value
    if not math.isfinite(single):
        return ".nan" if math.isnan(single) else f"{'-' if single < 0 else ''}.inf"
    digits = next(n for n in range(9) if ctypes.c_float(float(f"{single:.{n}e}")).value == single)
    written = f"{single:.{digits}e}"
    exponent = int(written.partition("e")[2])
    return f"{single:.{max(0, digits - exponent)}f}" if -4 <= exponent < 6 else written
