"""Checks names and labels as the API server does (k8s.io/apimachinery, util/validation)."""

import re
from collections.abc import Iterator, Mapping

from gputile.api.names import broken_label_name
from gputile.api.wording import shown
from gputile.tools.simulator.documents.manifests import Origin
from gputile.tools.simulator.rules.values.fields import Broken

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
_PORT_NAME = re.compile(r"[-a-z0-9]*", re.ASCII)
_HTTP_PATH = re.compile(r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+", re.ASCII)
_FINALIZERS = ("foregroundDeletion", "kubernetes", "orphan")
_MOST_ANNOTATIONS = 256 * 1024  # bytes


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


def broken_port_name(name: str) -> str | None:
    """Return why ``name`` is no name of a port; None where it is one."""
    letters = any(character.isalpha() for character in name)
    if len(name) > 15 or not _PORT_NAME.fullmatch(name) or not letters or "--" in name or name.strip("-") != name:
        rule = "at most 15 lower case letters, digits and single '-', with a letter among them"
        return f"Invalid value: {shown(name)}: must be {rule}"
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
