"""Parses Kubernetes quantities, memory sizes, and the numbers in pods' annotations.

A quantity is a decimal number with an SI suffix ("500m", "2k"), a binary suffix ("15Gi") or an
exponent ("1e3"). For example, a kubelet with 10,000 devices reports "10k". Each value is parsed
into an exact ``Fraction``, never into a float. ``pkg/api/resource/quantity.go`` of apimachinery
defines the grammar.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Final

from msgspec import Meta

from gputile.api.wording import RULE

MIB: Final = 1 << 20
"""Bytes of a mebibyte."""


_SUFFIX: dict[str, Fraction] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
# No character can be both a digit and part of a suffix, so matching takes linear time.
_QUANTITY = re.compile(
    r"(?P<number>[+-]?[0-9]*(?:\.[0-9]*)?)(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,18})?",
    re.ASCII,
)
_LIKE_A_QUANTITY = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<suffix>[A-Za-z]{1,3})", re.ASCII
)
LONGEST_QUANTITY = 256
"""The most characters that a quantity may have."""
_LONGEST_INTEGER = 1024  # bits
_LARGEST_EXPONENT = 99_999  # an API server computes for minutes on an exponent of nine digits
_LARGEST = Fraction(10**300)  # larger values are clamped to this value, which fits a float
_FURTHEST = 1000  # exponents are clamped to -1000 and 1000
_SPACES = (
    " \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)


class QuantityError(ValueError):
    """The text is not a Kubernetes quantity, or the quantity is not valid for the field."""


def parse_quantity(value: str | int | float) -> Fraction:
    """Return the exact value of a Kubernetes quantity.

    YAML parses unquoted numbers as ``int`` or ``float``. A float has the value of its
    shortest decimal form. Surrounding spaces are ignored, as in the API server. Raises
    QuantityError if the value is a bool, is not finite, is too long, or violates the grammar.
    """
    if isinstance(value, bool):
        raise QuantityError(f"{value!r} is not a quantity")
    if isinstance(value, int):
        if value.bit_length() > _LONGEST_INTEGER:
            raise QuantityError(
                f"a quantity is an integer of at most {_LONGEST_INTEGER} bits, this one is longer"
            )
        return Fraction(value)
    text = repr(value) if isinstance(value, float) else value
    if len(text) > LONGEST_QUANTITY:
        raise QuantityError(
            f"a quantity has at most {LONGEST_QUANTITY} characters, this one {len(text)}"
        )
    text = text.strip(_SPACES)
    match = _QUANTITY.fullmatch(text)
    if match is None or not text:
        raise QuantityError(f"{text!r} is not a quantity{_meant(text)}")
    digits, suffix = match["number"], match["suffix"] or ""
    # The API server parses a suffix without a number as 0.
    number = Fraction(digits) if digits.strip("+-.") else Fraction(0)
    if suffix in _SUFFIX:
        return number * _SUFFIX[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > _LARGEST_EXPONENT:
        raise QuantityError(f"{text!r} is out of range")
    return max(
        -_LARGEST, min(number * Fraction(10) ** max(-_FURTHEST, min(exponent, _FURTHEST)), _LARGEST)
    )


def _meant(text: str) -> str:
    """Return "; did you mean 2Gi?" for 2GiB, 2gi and 2 Gi, or "" if no suffix is similar."""
    match = _LIKE_A_QUANTITY.fullmatch(text)
    if match is None:
        return ""
    like = match["suffix"].lower().removesuffix("b")
    suffixes = [suffix for suffix in _SUFFIX if suffix and suffix.lower() == like]
    return f"; did you mean {match['number']}{suffixes[-1]}?" if suffixes else ""


Amount = Annotated[
    str,
    Meta(
        extra_json_schema={
            "pattern": r"^\+?[0-9]*(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?0{0,13}[0-9]{1,5})?$",
            "minLength": 1,
            "maxLength": LONGEST_QUANTITY,
        }
    ),
]
"""The text of an amount, which ``parse_amount`` parses.

Only JSON schemas use the pattern, because ``parse_amount`` has better messages.
"""


def parse_amount(value: str | int | float) -> Fraction:
    """Return the value of a quantity that must not be negative.

    Raises QuantityError if the value is not a quantity, or is negative.
    """
    amount = parse_quantity(value)
    if amount < 0:
        raise QuantityError(f"{value} is negative")
    return amount


def parse_count(value: str | int | float) -> int:
    """Return the value of a quantity that must be a whole number, as for extended resources.

    Raises QuantityError if the value is not a quantity, is negative, or is not a whole number.
    """
    if isinstance(value, str) and len(value) < 19 and value.isascii() and value.isdigit():
        return int(value)  # the usual text, ten times faster than through a fraction
    amount = parse_amount(value)
    if amount.denominator != 1:
        raise QuantityError(f"{_as_written(value, amount)} is not a whole number")
    if amount.numerator >= 2**63:
        raise QuantityError(f"{value} is out of range")
    return amount.numerator


def decimal(text: str, digits: int) -> int:
    """Parse a number of at most ``digits`` ASCII digits. Return -1 for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else -1


def count_of(amounts: Mapping[str, str | int | float], resource: str) -> int:
    """Return the count of a resource in ``amounts``, or 0 if the count is missing or invalid."""
    try:
        return parse_count(amounts.get(resource, 0))
    except QuantityError:
        return 0


def _as_written(value: str | int | float, amount: Fraction) -> str:
    """Return ``value`` as text, after its decimal form if the two differ, as in "0.5 (500m)".

    The API server stores a user's "0.5" as "500m".
    """
    plain = str(float(amount))
    exact = "e" not in plain and Fraction(plain) == amount
    return f"{plain} ({value})" if exact and plain != str(value) else str(value)


MemorySize = Annotated[
    str,
    Meta(
        extra={RULE: "a memory size such as 128MiB or 1GiB"},
        extra_json_schema={"pattern": r"^\s*[0-9]{1,12}\s?[MGT]iB?\s*$"},
    ),
]
"""The text of a memory size, which ``parse_mib`` parses.

Only JSON schemas use the pattern, because ``parse_mib`` has better messages.
"""

_MEMORY_UNIT = re.compile(r"(?P<number>[0-9]{1,12})\s?(?P<suffix>[MGT]i?B?)", re.ASCII)


def parse_mib(text: str) -> int:
    """Return a memory size in MiB. It may be written as by ACK ("128MiB") or Kubernetes ("128Mi").

    Raises QuantityError if the text is not a whole number with a unit of MiB, GiB or TiB.
    """
    match = _MEMORY_UNIT.fullmatch(text.strip())
    if match is None or "i" not in match["suffix"]:
        raise QuantityError(f"{text!r} is not a memory size such as 128MiB or 1GiB")
    return int(match["number"]) << 10 * "MGT".index(match["suffix"][0])


MOST_WEIGHT: Final = 1000


def parse_weight(text: str, most: int = MOST_WEIGHT) -> int:
    """Return the weight in a pod's annotation. The pod's namespace allows at most ``most``.

    Raises ValueError if the weight is not valid. The error's text states the valid range.
    """
    weight = decimal(text, 4)
    if 1 <= weight <= most:
        return weight
    whose = "" if most == MOST_WEIGHT else " in this namespace"
    raise ValueError(f"{text!r} is no weight of GPU time; valid{whose} are 1 to {most}")


def parse_active_threads(text: str) -> int:
    """Return a pod's CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, the percentage of a GPU's threads.

    ``text`` is the value of the annotation ``MPS_THREADS_ANNOTATION``. Raises ValueError if the
    percentage is not valid. The error's text states the valid range.
    """
    percentage = decimal(text, 3)
    if 1 <= percentage <= 100:
        return percentage
    raise ValueError(f"{text!r} is not a percentage of a GPU's threads; valid are 1 to 100")
