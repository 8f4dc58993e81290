"""Tells whether an API server can store an object of this size."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

_MOST_SENT: Final = 3 << 20
_MOST_STORED: Final = 3 << 19  # what etcd takes by default in a request (--max-request-bytes)
_MOST_ANNOTATED: Final = 256 << 10
_LONGEST_KEY: Final = len("kubectl.kubernetes.io/last-applied-configuration")
_ITS_NAMES: Final = 2  # how many times names of fields are stored, at most about: each field's manager is known
_BOUNDED_BY_RULES: Final = ("ConfigMap", "Secret")  # to less; and what is base64 in them is stored as it was before


def broken_size(kind: str, body: Mapping[str, Any]) -> str | None:
    """Return why an object of ``kind`` is too large, None where it is not by its texts alone.

    How much more is stored depends on the kind, so an object that is just below the limit may be refused all the same.
    """
    sent = len(msgspec.json.encode(body))
    if sent > _MOST_SENT:
        return f"Request entity too large: it has {sent:,} bytes as JSON, and an API server takes {_MOST_SENT:,}"
    if sent <= _MOST_STORED or kind in _BOUNDED_BY_RULES or (size := _text(body)) <= _MOST_STORED:
        return None
    return f"request is too large: it has {size:,} bytes of text, and etcd takes {_MOST_STORED:,} by default"


def doubted_size(kind: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield why an object that is not too large by its texts alone may be too large all the same."""
    sent = len(msgspec.json.encode(body))
    if 2 * sent + _LONGEST_KEY <= _MOST_ANNOTATED:
        return
    metadata = body.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if sent + _LONGEST_KEY + _text(annotations) > _MOST_ANNOTATED:
        why = f"kubectl apply keeps all of it in an annotation, too, and annotations have {_MOST_ANNOTATED:,} bytes"
        yield f"{why}: apply it with --server-side"
    if kind not in _BOUNDED_BY_RULES and sent + _ITS_NAMES * (sent - _text(body)) > _MOST_STORED:
        why = f"it has {sent:,} bytes as JSON, and etcd takes {_MOST_STORED:,} by default, names of fields included"
        yield f"{why}: whether it is too large is not judged"


def _text(value: Any) -> int:
    """Return the bytes of the texts in a value, without the names of fields, which are not stored."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, dict | list):
        return sum(map(_text, value.values() if isinstance(value, dict) else value))
    return 0
