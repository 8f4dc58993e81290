"""Writes YAML that readers in Go take for what was written: "1e5", "08" and "y" are no texts for them."""

from collections.abc import Iterable
from typing import Any, Final

import yaml

from gputile.support.yaml_loader import add_kubernetes_scalars

_BREAKS: Final = frozenset("\x85\u2028\u2029")  # ends of lines for YAML 1.1: only escaped they stay what they are
_UNFOLDED: Final = 1_000_000  # columns: a sentence stays one line


def yaml_text(documents: Iterable[Any], *, width: int = _UNFOLDED) -> str:
    """Return the documents, of plain values, as YAML; lines longer than ``width`` columns are folded."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes what PyYAML or Kubernetes would read as something else than text."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _BREAKS & set(text) else None)


add_kubernetes_scalars(_Dumper)
_Dumper.add_representer(str, _represent_text)
