"""Formats amounts for people, and words the errors about fields of manifests and configuration."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from msgspec import Meta

LONGEST: Final = 60
"""The most characters of a name or value in a message."""

LONGEST_REFUSAL: Final = 400
"""The most characters of a refusal's reason, which untrusted names could make very long."""

RULE: Final = "rule"
"""The key in ``msgspec.Meta.extra`` of a pattern's description, which messages show."""

_MOST_NAMED: Final = 20  # the most valid values or fields in a message
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_QUALIFIED: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


def nearest(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" with the most similar valid name, or "" if no name is similar.

    ``cutoff`` is the required similarity from 0 to 1 (``difflib.SequenceMatcher.ratio``).
    """
    import difflib

    by_lower: dict[str, str] = {}
    for each in valid:
        by_lower.setdefault(each.lower(), each)
    close = difflib.get_close_matches(name[:LONGEST].lower(), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def unsupported(value: str, valid: Iterable[str]) -> str:
    """Return the API server's message for a value that is not one of the valid values."""
    names = list(valid)
    return f"Unsupported value: {shown(value)}: {supported(names)}{nearest(value, names)}"


def kind_of(value: Any) -> str:
    """Return the name of a YAML value's kind, such as "a mapping"."""
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), "nothing")


def shown(text: str) -> str:
    """Quote untrusted text. Truncate it, and replace characters that are not printable."""
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return '"' + "".join(character if character.isprintable() else "?" for character in cut) + '"'


def shortened(text: str) -> str:
    """Truncate a refusal's reason to ``LONGEST_REFUSAL`` characters, and make it printable."""
    cut = text if len(text) <= LONGEST_REFUSAL else f"{text[: LONGEST_REFUSAL - 3]}..."
    return (
        cut if cut.isprintable() else "".join(each if each.isprintable() else "?" for each in cut)
    )


def supported(valid: Sequence[Any]) -> str:
    """List the valid values. The value "" is left out, because it stands for an absent field."""
    words = [shown(each) if isinstance(each, str) else str(each) for each in valid if each != ""]
    return (
        f"supported values: "
        f"{', '.join(words[:_MOST_NAMED])}{', ...' if len(words) > _MOST_NAMED else ''}"
    )


def known(fields: Iterable[str]) -> str:
    """Return "; known are ..." with the fields of a mapping, or "" if there are too many."""
    names = list(fields)
    return f"; known are {', '.join(names)}" if 0 < len(names) <= _MOST_NAMED else ""


def first_of(names: Sequence[str], most: int) -> str:
    """List the first ``most`` names, and count the others: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def gib_text(mib: int, digits: int = 1) -> str:
    """Format memory in GiB, rounded down to ``digits`` decimal places."""
    scale: int = 10**digits
    return f"{mib * scale // 1024 / scale:.{digits}f}".rstrip("0").rstrip(".")


def memory_text(mib: int) -> str:
    """Format memory with its unit: "4 GiB", "22.48 GiB", "512 MiB"."""
    return f"{gib_text(mib, 2)} GiB" if mib >= 1024 or not mib else f"{mib} MiB"


def below(path: str, inner: str) -> str:
    """Join a path with a path relative to it."""
    dot = "." if path and inner and not inner.startswith("[") else ""
    return f"{path}{dot}{inner}"


def at(path: str, key: Any) -> str:
    """Return the path of ``key`` in the mapping at ``path``. An unusual key is quoted."""
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key) and len(key) <= LONGEST:
        return f"{path}.{key}" if path else key
    return f"{path}[{shown(str(key))}]"


def broken_label_name(name: str) -> str | None:
    """Return why ``name`` is not a DNS label (a container's name), or None if it is valid."""
    if len(name) > 63:
        return f"Invalid value: {shown(name)}: must be no more than 63 characters"
    if not _LABEL.fullmatch(name):
        rule = (
            "lower case letters, digits and '-', beginning and ending with a letter or digit "
            "(RFC 1123 label)"
        )
        return f"Invalid value: {shown(name)}: must be {rule}"
    return None


def broken_subdomain(name: str) -> str | None:
    """Return why ``name`` is not a DNS subdomain (an object's name), or None if it is valid."""
    if len(name) > 253:
        return f"Invalid value: {shown(name)}: must be no more than 253 characters"
    if not _SUBDOMAIN.fullmatch(name):
        rule = (
            "lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
        )
        return f"Invalid value: {shown(name)}: must be {rule} (RFC 1123 subdomain)"
    return None


def broken_qualified_name(name: str) -> str | None:
    """Return why ``name`` is no valid label, annotation or resource name, or None if it is."""
    prefix, slash, last = name.rpartition("/")
    if slash and (not prefix or broken_subdomain(prefix)):
        return f"Invalid value: {shown(name)}: the part before '/' must be an RFC 1123 subdomain"
    if len(last) > 63 or not _QUALIFIED.fullmatch(last):
        rule = (
            "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter "
            "or digit"
        )
        return f"Invalid value: {shown(name)}: a name must be {rule}"
    return None


def broken_label_value(value: str) -> str | None:
    """Return why ``value`` is not valid as the value of a label, or None if it is valid."""
    if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
        rule = (
            "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter "
            "or digit"
        )
        return f"Invalid value: {shown(value)}: a label's value must be empty, or {rule}"
    return None


def described(text: str, **rules: Any) -> "Meta":
    """Return the metadata of a field: its description for the JSON schema, and its constraints."""
    from msgspec import Meta

    return Meta(description=text, **rules)


def matching(pattern: str, rule: str, description: str | None = None) -> "Meta":
    """Return the constraint that a whole string matches ``pattern``.

    Messages show ``rule`` instead of the pattern.
    """
    from msgspec import Meta

    # In Python, "$" would also match before a trailing newline.
    return Meta(pattern=rf"^{pattern}\Z", extra={RULE: rule}, description=description)


@dataclass(frozen=True, slots=True)
class FieldMistake:
    """The path of a wrong field, or "" for the whole value, and the rule that is broken."""

    path: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rule}" if self.path else self.rule
