"""Writes YAML that PyYAML, Kubernetes and other readers in Go read back as what was written.

PyYAML quotes a text that it would itself read as something else. Readers in Go take more for numbers and booleans:
"1e5", "08" and "y".
"""

from collections.abc import Iterable
from typing import Any, Final

import yaml

from gputile.support.yaml_scalars import ScalarError, read_scalar

_TEXT: Final = "tag:yaml.org,2002:str"
_BREAKS: Final = frozenset("\x85\u2028\u2029")  # ends of lines for YAML 1.1: only escaped they stay what they are
_UNFOLDED: Final = 1_000_000  # columns: a sentence stays one line


def yaml_text(documents: Iterable[Any], *, width: int = _UNFOLDED, ascii_only: bool = False) -> str:
    """Return the documents, of plain values, as YAML; lines longer than ``width`` columns are folded.

    With ``ascii_only``, other characters are written by their codes, in quotes.
    """
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=not ascii_only, width=width)
    return text


class _Dumper(yaml.SafeDumper):
    """PyYAML's, with quotes also where others need them."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _BREAKS & set(text) else "'" if _is_something_else(text) else None
    return dumper.represent_scalar(_TEXT, text, style=style)


def _is_something_else(text: str) -> bool:
    try:
        return not isinstance(read_scalar(text, ""), str)
    except ScalarError:
        return True


_Dumper.add_representer(str, _represent_text)
