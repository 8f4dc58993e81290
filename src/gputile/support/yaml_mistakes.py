"""Says in plain words where a YAML text cannot be read, and why.

libyaml tells what its parser looked for at the place where it gave up. People look for the quote, the comma or the
space that they forgot, which is often at the place where the parser began.
"""

from types import MappingProxyType
from typing import Final

import yaml

_TAB: Final = "a tab stands where spaces must: YAML indents by spaces only"
_COLON: Final = "this line has no key: write KEY: VALUE, with a space behind the colon"
_INDENT: Final = "its indentation fits no line above, or what stands before it in its line has ended"
_PERCENT: Final = "a line that begins with % is a directive of YAML, and this one is unknown: write the text in quotes"
_VERSION: Final = "the version behind %YAML is not one that is read: write 1.1 or 1.2, or leave the line out"

# What libyaml says, and what is wrong: {at} stands for the character there, {begin} for where the outer value begins.
_AT_THE_END: Final = MappingProxyType(
    {
        "mapping values are not allowed in this context": (
            "no key can stand here: quote text that holds a colon and a space, check the indentation, "
            "and write a space behind the colon of the line above"
        ),
        "did not find expected ',' or ']'": "a comma or ] is missing before this: [ at {begin} is still open",
        "did not find expected ',' or '}'": "a comma or }} is missing before this: {{ at {begin} is still open",
        "did not find expected key": f"no key of the mapping that begins at {{begin}}: {_INDENT}",
        "did not find expected '-' indicator": f"no entry (- ) of the list that begins at {{begin}}: {_INDENT}",
        "found character that cannot start any token": "no text begins with {at}: write it in quotes",
        "found a tab character that violates indentation": _TAB,
        "found unknown escape character": (
            "in double quotes a backslash begins an escape, and this is none: write two, or use single quotes"
        ),
        "did not find expected alphabetic or numeric character": (
            "* and & stand before a name in YAML: write text that begins with one in quotes"
        ),
        "block sequence entries are not allowed in this context": (
            "no entry of a list (- ) can stand here: begin it in a line of its own, or write text in quotes"
        ),
        "did not find expected node content": "a value is missing here, before {at}",
        "did not find expected <document start>": (
            "this belongs to no value: a bracket too many, or a line of --- is missing before it"
        ),
        "did not find expected comment or line break": "behind | and > the text begins in the next line",
        "did not find expected hexdecimal number": (
            "in double quotes \\x, \\u and \\U stand before 2, 4 and 8 hexadecimal digits: "
            "write two backslashes, or use single quotes"
        ),
        "found unknown directive name": _PERCENT,
        "could not find expected directive name": _PERCENT,
        "found invalid Unicode character escape code": "no character has the number behind \\u or \\U",
        "found incompatible YAML document": _VERSION,
        "did not find expected version number": _VERSION,
        "found undefined tag handle": "! begins a tag in YAML, and this one is unknown: write text in quotes",
    }
)
# Those where the mistake is where the parser began.
_AT_THE_BEGINNING: Final = MappingProxyType(
    {
        "could not find expected ':'": _COLON,
        "found unexpected end of stream": "the quote that begins here has no end",
    }
)


def described_mistake(error: yaml.MarkedYAMLError, text: str, before: int = 0) -> str:
    """Return line, column and what is wrong; ``before`` lines stand before ``text``, in which the error was found.

    An error that is in neither table keeps libyaml's own words.
    """
    problem, end, begin = error.problem or "", error.problem_mark, error.context_mark
    if begin is not None and problem in _AT_THE_BEGINNING:
        return f"{_place(begin, before)}: {_AT_THE_BEGINNING[problem]}"
    if end is None:
        return f"not to be read as YAML: {problem}"
    at = text[end.index : end.index + 1]
    why = _TAB if at == "\t" else _AT_THE_END.get(problem, "")
    told = why.format(at=at or "the end of the text", begin=_place(begin or end, before))
    return f"{_place(end, before)}: {told or f'not to be read as YAML: {problem}'}"


def _place(mark: yaml.Mark, before: int) -> str:
    return f"line {before + mark.line + 1}, column {mark.column + 1}"
