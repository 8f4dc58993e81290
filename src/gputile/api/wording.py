"""Words amounts, and what is wrong with a field: its value, what is valid, and which name is meant."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from msgspec import Meta

LONGEST: Final = 60
"""Characters of a name or value that are shown."""

LONGEST_REFUSAL: Final = 400
"""Characters of a reason why something is refused; names in it come from others, and may have a megabyte."""

RULE: Final = "rule"
"""Key of ``msgspec.Meta.extra``: what a pattern demands, in words."""

_MOST_NAMED: Final = 20  # valid values or fields
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def nearest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" for the name that is most like ``name``, or "" where none is.

    ``cutoff`` is how like it has to be, from 0 to 1 (``difflib.SequenceMatcher.ratio``).
    """
    import difflib

    by_lower: dict[str, str] = {}
    for each in valid:
        by_lower.setdefault(each.lower(), each)
    close = difflib.get_close_matches(name[:LONGEST].lower(), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def unsupported(value: str, valid: Iterable[str]) -> str:
    """Return the rule that ``value`` breaks where only some are valid."""
    names = list(valid)
    return f"Unsupported value: {shown(value)}: {supported(names)}{nearest(value, names)}"


def kind_of(value: Any) -> str:
    """Return what a value of YAML is, in words."""
    names = {dict: "a mapping", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "nothing")


def shown(text: str) -> str:
    """Return text of a manifest in quotes: cut, and printable."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return '"' + "".join(character if character.isprintable() else "?" for character in cut) + '"'


def shortened(text: str) -> str:
    """Return the reason of a refusal, cut to ``LONGEST_REFUSAL`` characters and printable."""
    cut = text if len(text) <= LONGEST_REFUSAL else f"{text[: LONGEST_REFUSAL - 3]}..."
    return cut if cut.isprintable() else "".join(each if each.isprintable() else "?" for each in cut)


def supported(valid: Sequence[Any]) -> str:
    """Return which values are valid; an empty one, for a field that is left out, is not named."""
    words = [shown(each) if isinstance(each, str) else str(each) for each in valid if each != ""]
    return f"supported values: {', '.join(words[:_MOST_NAMED])}{', ...' if len(words) > _MOST_NAMED else ''}"


def known(fields: Iterable[str]) -> str:
    """Return "; known are ..." for a mapping of a few fields, "" for one of many."""
    names = list(fields)
    return f"; known are {', '.join(names)}" if 0 < len(names) <= _MOST_NAMED else ""


def first_of(names: Sequence[str], most: int) -> str:
    """Return the first ``most`` names, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def gib_text(mib: int, digits: int = 1) -> str:
    """Return an amount of memory in GiB, rounded down, with at most so many digits behind the point."""
    scale: int = 10**digits
    return f"{mib * scale // 1024 / scale:.{digits}f}".rstrip("0").rstrip(".")


def memory_text(mib: int) -> str:
    """Return an amount of memory for people: "4 GiB", "22.48 GiB", "512 MiB"."""
    return f"{gib_text(mib, 2)} GiB" if mib >= 1024 or not mib else f"{mib} MiB"


def below(path: str, inner: str) -> str:
    """Return the path of what stands at ``inner`` of the value at ``path``."""
    dot = "." if path and inner and not inner.startswith("[") else ""
    return f"{path}{dot}{inner}"


def at(path: str, key: Any) -> str:
    """Return the path of a key of the mapping at ``path``, as people write it."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) and len(key) <= LONGEST:
        return f"{path}.{key}" if path else key
    return f"{path}[{shown(str(key))}]"


def broken_label_name(name: str) -> str | None:
    """Return why ``name`` is no DNS label, as names of containers and namespaces are; None where it is one."""
    if len(name) > 63:
        return f"Invalid value: {shown(name)}: must be no more than 63 characters"
    if not _LABEL.fullmatch(name):
        rule = "lower case letters, digits and '-', beginning and ending with a letter or digit (RFC 1123 label)"
        return f"Invalid value: {shown(name)}: must be {rule}"
    return None


def broken_subdomain(name: str) -> str | None:
    """Return why ``name`` is no DNS subdomain, as names of objects are; None where it is one."""
    if len(name) > 253:
        return f"Invalid value: {shown(name)}: must be no more than 253 characters"
    if not _SUBDOMAIN.fullmatch(name):
        rule = "lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        return f"Invalid value: {shown(name)}: must be {rule} (RFC 1123 subdomain)"
    return None


def broken_qualified_name(name: str) -> str | None:
    """Return why ``name`` is no key of a label or annotation, or name of a resource; None where it is one."""
    prefix, slash, last = name.rpartition("/")
    if slash and (not prefix or broken_subdomain(prefix)):
        return f"Invalid value: {shown(name)}: the part before '/' must be an RFC 1123 subdomain"
    if len(last) > 63 or not _QUALIFIED.fullmatch(last):
        rule = "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
        return f"Invalid value: {shown(name)}: a name must be {rule}"
    return None


def broken_label_value(value: str) -> str | None:
    """Return why ``value`` is no value of a label; None where it is one."""
    if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
        rule = "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
        return f"Invalid value: {shown(value)}: a label's value must be empty, or {rule}"
    return None


def described(text: str, **rules: Any) -> "Meta":
    """Return what a field is, for the schema of its record, and by ``rules`` which values it takes."""
    from msgspec import Meta

    return Meta(description=text, **rules)


def matching(pattern: str, rule: str, description: str | None = None) -> "Meta":
    """Return that a string is ``pattern`` from beginning to end, and ``rule``, what it demands in words."""
    from msgspec import Meta

    # Not "$", as in JSON Schema: in Python it stands before a line's end, too.
    return Meta(pattern=rf"^{pattern}\Z", extra={RULE: rule}, description=description)


@dataclass(frozen=True, slots=True)
class FieldMistake:
    """A field, "" for the value itself, and the rule that it breaks."""

    path: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}" if self.path else self.rule
