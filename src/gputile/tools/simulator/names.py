"""Checks names and labels as the API server does, and derives those that a cluster generates.

Derived names and UIDs are the same in every run.
"""

import hashlib
import uuid
from collections.abc import Callable

from gputile.api.wording import broken_subdomain
from gputile.tools.simulator.manifests import Origin

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' own for generated names: no vowels, no look-alikes
_SUFFIXES = len(_ALPHABET) ** 5
_LONGEST_PREFIX = 58  # characters of a generateName that the API server keeps
_UIDS = uuid.uuid5(uuid.NAMESPACE_DNS, "gputile.io")


def make_uid(kind: str, namespace: str, name: str) -> str:
    """Return the UID of an object that has none: the same for the same name."""
    return str(uuid.uuid5(_UIDS, f"{kind}/{namespace}/{name}"))


def suffixes(seed: str) -> Callable[[int], str]:
    """Return a function from a pod's number to five characters, distinct for distinct numbers."""
    digest = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16], "big")
    offset, step = digest % _SUFFIXES, digest // _SUFFIXES % _SUFFIXES
    step += step % 3 == 0  # no common factor with 27**5: every number gets its own suffix

    def suffix(number: int) -> str:
        value, text = (offset + number * step) % _SUFFIXES, ""
        for _ in range(5):
            value, digit = divmod(value, len(_ALPHABET))
            text += _ALPHABET[digit]
        return text

    return suffix


def generated_name(prefix: str, seed: str) -> str:
    """Return the name that an object without one gets from its ``generateName``."""
    return prefix[:_LONGEST_PREFIX] + suffixes(seed)(0)


def revision(content: bytes) -> str:
    """Return what stands for a template's hash in names and labels: ten characters, the same for the same content."""
    return hashlib.sha256(content).hexdigest()[:10]


def make_gpu_uuid(node: str, index: int) -> str:
    """Return the UUID of a described node's GPU, in NVIDIA's form: the same for the same node and index."""
    return f"GPU-{uuid.uuid5(_UIDS, f'GPU/{node}/{index}')}"


def check_name(origin: Origin, path: str, name: str) -> None:
    """Check that Kubernetes accepts ``name`` for an object.

    Raises:
        ManifestError: it is not.
    """
    if why := broken_subdomain(name):
        raise origin.error(path, why)
