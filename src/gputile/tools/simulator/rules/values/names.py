"""Checks names and labels as the API server does (k8s.io/apimachinery, util/validation)."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gputile.api.wording import broken_label_name, shown
from gputile.tools.simulator.documents.manifests import Origin
from gputile.tools.simulator.rules.values.fields import Broken

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_HTTP_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", re.ASCII)
_FINALIZERS = ("foregroundDeletion", "kubernetes", "orphan")
_MOST_ANNOTATIONS = 256 * 1024  # bytes
_LONGEST_DRIVER = 63


def _text(pattern: str, rule: str, longest: int | None = None) -> Callable[[str], str | None]:
    """Return a function that returns why a text is not of the ``pattern``, None where it is."""
    compiled = re.compile(pattern)

    def broken(text: str) -> str | None:
        if compiled.fullmatch(text) and (longest is None or len(text) <= longest):
            return None
        return f"Invalid value: {shown(text)}: must be {rule}"

    return broken


broken_port_name: Final = _text(
    r"(?!-)(?!.*--)(?=.*[a-z])[-a-z0-9]*(?<!-)",
    "at most 15 lower case letters, digits and single '-', with a letter among them",
    15,
)
broken_header: Final = _text(r"[-A-Za-z0-9]+", "letters, digits and '-'")
broken_variable: Final = _text(r"[ -<>-~]*", "printable ASCII characters except '='")
broken_sysctl: Final = _text(
    r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?",
    "lower case letters, digits, '-' and '_', in parts between '.' or '/'",
    253,
)
_broken_search: Final = _text(
    r"(_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?\.)*_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?",
    "a domain of lower case letters, digits, '-', '_' and '.'",
    253,
)
broken_iscsi_name: Final = _text(
    r"(?=iqn)(?s:.*)iqn\.[0-9]{4}-[0-9]{2}\.[A-Za-z0-9.-]+:[^,;*&$|\s]+|eui.[0-9A-Za-z]{16}|naa.[0-9A-Za-z]{32}",
    "an iSCSI name, as iqn.2001-04.com.example:storage, eui. with 16 digits, or naa. with 32",
)


def check_name(origin: Origin, path: str, name: str) -> None:
    """Check that Kubernetes accepts ``name`` for an object.

    Raises:
        ManifestError: it is not.
    """
    if why := broken_subdomain(name):
        raise origin.error(path, why)


def is_version(written: object) -> bool:
    """Return whether a ``metadata.resourceVersion`` is one of a stored object; "0" is any version."""
    return isinstance(written, str) and written.isdecimal() and bool(written.strip("0"))


def broken_rfc1035_label(name: str) -> str | None:
    """Return why ``name`` is no RFC 1035 label, as names of Services that begin with a letter; None where it is one."""
    if not broken_label_name(name) and name[0].isalpha():
        return None
    rule = "at most 63 lower case letters, digits and '-', beginning with a letter and not ending with '-'"
    return f"Invalid value: {shown(name)}: must be {rule} (RFC 1035 label)"


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


def broken_path_segment(name: str) -> str | None:
    """Return why ``name`` cannot be a part of a URL's path; None where it can."""
    if name in (".", "..") or "/" in name or "%" in name:
        return f"Invalid value: {shown(name)}: must not be '.' or '..', and not contain '/' or '%'"
    return None


def broken_domain_path(path: str) -> str | None:
    """Return why ``path`` is no path behind a domain, such as acme.io/foo; None where it is one."""
    domain, _, rest = path.partition("/")
    if not path:
        return "Required value"
    if broken_subdomain(domain) or not _HTTP_PATH.fullmatch(rest):
        return f"Invalid value: {shown(path)}: must be a path behind a domain, such as acme.io/foo"
    return None


def broken_finalizer(name: str) -> str | None:
    """Return why ``name`` is no name of a finalizer; None where it is one."""
    if why := broken_qualified_name(name):
        return why
    if "/" in name or name in _FINALIZERS:
        return None
    return f"Invalid value: {shown(name)}: must have a domain before it, as example.com/{name}"


def broken_search_domain(name: str) -> str | None:
    """Return why resolvers cannot search below ``name``; None where they can."""
    return None if name == "." else _broken_search(name.removesuffix("."))


def broken_host(name: str) -> str | None:
    """Return why ``name`` is no name of a host, whose first part may be "*"; None where it is one."""
    if "*" not in name:
        return broken_subdomain(name)
    if not name.startswith("*.") or broken_subdomain(name.removeprefix("*.")):
        return f"Invalid value: {shown(name)}: a wildcard stands alone before the first '.', as *.example.com"
    return None


def broken_csi_driver(name: str) -> str | None:
    """Return why ``name`` is no name of a CSI driver; None where it is one."""
    if len(name) > _LONGEST_DRIVER:
        return f"Too long: may not be more than {_LONGEST_DRIVER} bytes"
    return broken_subdomain(name.lower())


def broken_label_value(value: str) -> str | None:
    """Return why ``value`` is no value of a label; None where it is one."""
    if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
        rule = "at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
        return f"Invalid value: {shown(value)}: a label's value must be empty, or {rule}"
    return None


def broken_labels(path: str, labels: Mapping[str, str]) -> Iterator[Broken]:
    """Yield what is wrong with a map of labels."""
    for key, value in labels.items():
        for why in filter(None, (broken_qualified_name(key), broken_label_value(value))):
            yield path, why


def broken_annotations(path: str, annotations: Mapping[str, str]) -> Iterator[Broken]:
    """Yield what is wrong with annotations."""
    for key in annotations:
        if why := broken_qualified_name(key.lower()):
            yield path, why
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _MOST_ANNOTATIONS:
        yield path, f"Too long: may not be more than {_MOST_ANNOTATIONS} bytes"
