"""The comparison of a value with a type finds something just where msgspec refuses the value."""

from typing import Any

import msgspec
from hypothesis import given

from gputile.api.type_check import mistakes
from tests.unit.api.test_conversion import VALUES, Outer


@given(VALUES)
def test_it_agrees_with_msgspec(written: Any) -> None:
    try:
        msgspec.convert(written, Outer)
        fits = True
    except msgspec.ValidationError:
        fits = False
    assert fits == (not list(mistakes(written, Outer)))
