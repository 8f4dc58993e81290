"""Quantities are exact, and nothing but a QuantityError leaves the parser."""

from decimal import Decimal, localcontext
from fractions import Fraction
from math import isinf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputile.api.quantity import QuantityError, count_of, decimal, parse_count, parse_mib, parse_quantity

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
LARGEST = Fraction(10**300)
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

signs = st.sampled_from(["", "+", "-"])
digits = st.text("0123456789", min_size=1, max_size=18)
numbers = st.one_of(
    digits,
    digits.map(lambda d: f"{d}."),
    digits.map(lambda d: f".{d}"),
    st.tuples(digits, digits).map(".".join),
)


def reference(sign: str, number: str, scale: Decimal) -> Fraction:
    with localcontext() as context:
        context.prec = 200
        return Fraction(Decimal(sign + number) * scale)


@given(signs, numbers, st.sampled_from([*DECIMAL, *BINARY]))
def test_suffixes_agree_with_decimal_arithmetic(sign: str, number: str, suffix: str) -> None:
    scale = Decimal(2) ** BINARY[suffix] if suffix in BINARY else Decimal(10) ** DECIMAL[suffix]
    assert parse_quantity(sign + number + suffix) == reference(sign, number, scale)


@given(signs, numbers, st.sampled_from("eE"), st.integers(-30, 30))
def test_exponents_agree_with_decimal_arithmetic(sign: str, number: str, e: str, exponent: int) -> None:
    assert parse_quantity(f"{sign}{number}{e}{exponent}") == reference(sign, number, Decimal(10) ** exponent)


@given(st.integers(0, 2**63 - 1))
def test_counts_keep_every_integer_however_written(number: int) -> None:
    assert parse_count(number) == parse_count(str(number)) == parse_count(f"{number}000m") == number


@given(st.floats())
def test_floats_are_read_by_their_shortest_form(value: float) -> None:
    try:
        parsed = parse_quantity(value)
    except QuantityError:
        assert isnan(value) or isinf(value)
    else:
        assert parsed == max(-LARGEST, min(Fraction(Decimal(repr(value))), LARGEST))


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1 2", "\t1", "1K", "1ki", "0x10", "1_000", "NaN", "1e", "3e+", "+-", "--1", "1Eii", "１"),
    ],
)
def test_what_kubernetes_refuses_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


@pytest.mark.requirement("B4")
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2GiB", "; did you mean 2Gi?"),
        ("1.5gb", "; did you mean 1.5G?"),
        ("16 Mi", "; did you mean 16Mi?"),
        ("4K", "; did you mean 4k?"),
        ("500MB", "; did you mean 500M?"),
        ("2x", ""),
        ("lots", ""),
        ("B", ""),
    ],
)
def test_the_suffix_that_is_meant_is_named(text: str, meant: str) -> None:
    with pytest.raises(QuantityError) as refused:
        parse_quantity(text)
    assert str(refused.value) == f"{text!r} is not a quantity{meant}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" 1", 1),
        ("1  ", 1),
        ("\xa01", 1),
        *((text, 0) for text in (".", "-.k", "+", "Ki", "e3")),
        ("1E400", LARGEST),
        ("-1e0400", -LARGEST),
        ("1e-400", Fraction(1, 10**400)),
        ("1e-5000", Fraction(1, 10**1000)),
        ("1e32767", LARGEST),
        ("9" * 70, Fraction(10**70 - 1)),
    ],
)
def test_what_an_api_server_takes_is_taken(text: str, value: Fraction) -> None:
    """An amount beyond everything that there is counts as the largest one."""
    assert parse_quantity(text) == value


@pytest.mark.requirement("G2")
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("0.5", "^0.5 is not a whole number$"),
        (0.5, "^0.5 is not a whole number$"),
        ("500m", r"^0.5 \(500m\) is not a whole number$"),
        ("1.0000000000000000001", "^1.0000000000000000001 is not a whole number$"),
        ("1n", "^1n is not a whole number$"),
        ("-1", "negative"),
        (-1, "negative"),
        (2**63, "out of range"),
        pytest.param(10**5000, "1024 bits", id="too-long"),
        ("9" * 257, "256 characters"),
        (" " * 256 + "1", "256 characters"),
        ("1e100000", "out of range"),
        (True, "not a quantity"),
    ],
)
def test_counts_say_which_rule_is_broken_g2(value: str | float, rule: str) -> None:
    with pytest.raises(QuantityError, match=rule):
        parse_count(value)


@pytest.mark.parametrize(
    ("amount", "count"), [("4", 4), ("10k", 10_000), (2, 2), ("0", 0), ("-1", 0), ("0.5", 0), ("many", 0)]
)
def test_what_is_no_count_of_a_resource_is_none(amount: str | int, count: int) -> None:
    assert count_of({"nvidia.com/gpu": amount}, "nvidia.com/gpu") == count
    assert count_of({}, "nvidia.com/gpu") == 0


@pytest.mark.requirement("U2")
@pytest.mark.parametrize(
    ("text", "mib"),
    [("128MiB", 128), ("128 MiB", 128), ("128Mi", 128), ("1GiB", 1024), ("2Gi", 2048), (" 64MiB ", 64), ("0MiB", 0)],
)
def test_memory_units_as_documents_and_kubernetes_write_them_u2(text: str, mib: int) -> None:
    assert parse_mib(text) == mib


@pytest.mark.requirement("U2")
@pytest.mark.parametrize("text", ["128", "128MB", "1G", "128M", "-1MiB", "1.5GiB", "MiB", ""])
def test_other_memory_units_are_refused_u2(text: str) -> None:
    with pytest.raises(QuantityError, match="memory size"):
        parse_mib(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("064", 64), ("999", 999), ("1000", -1), ("", -1), ("-1", -1), ("1.0", -1), ("\u0663", -1)],
)
def test_only_so_many_ascii_digits_are_a_number(text: str, number: int) -> None:
    assert decimal(text, 3) == number
