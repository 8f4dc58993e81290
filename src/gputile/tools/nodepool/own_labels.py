"""Checks a description's own ``labels``: Kubernetes' syntax, and no contradiction to a field.

Sources: Kubernetes, "Labels and Selectors", syntax and character set; kubelet, ``--node-labels``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gputile.tools.nodepool.labels import TO_A_KUBELET, Told, told, within
from gputile.tools.nodepool.pool import NodePool

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_LONGEST_PREFIX: Final = 253
_SHOWN: Final = 80
_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
_KUBELETS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_NAME_RULE: Final = "up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def syntax_problems(labels: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the form of labels."""
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if slash and not (len(prefix) <= _LONGEST_PREFIX and _PREFIX.fullmatch(prefix)):
            yield f"labels: {key[:_SHOWN]!r}: before '/' stands a DNS name in lower case, such as example.com"
        if not _NAME.fullmatch(name):
            yield f"labels: {key[:_SHOWN]!r}: the name of a label is {_NAME_RULE}"
        if value and not _NAME.fullmatch(value):
            yield f"labels: {key[:_SHOWN]} is {value[:_SHOWN]!r}: the value of a label is empty, or {_NAME_RULE}"


def meaning_problems(pool: NodePool) -> Iterator[str]:
    """Yield the labels that contradict the description, or that no kubelet takes; the rest of it has to be valid."""
    known = told(pool)
    for key, value in pool.labels.items():
        if key in known and value != known[key].value:
            yield _contradiction(key, value, known[key])
        elif _of_kubernetes(key):
            yield (
                f"labels: {key}: a kubelet takes no label of kubernetes.io or k8s.io that it does not know, so that "
                f"no node would join: use a domain of your own, or one of {', '.join(_KUBELETS)}"
            )


def _contradiction(key: str, value: str, known: Told) -> str:
    if known.value is None:
        return f"labels: {key} is {value!r}, but by {known.field} no node of this pool has it: leave it out"
    return (
        f"labels: {key} is {value!r}, but by {known.field} the nodes have {known.value!r}: leave it out here, or "
        f"change {known.field}"
    )


def _of_kubernetes(key: str) -> bool:
    domain = key.rpartition("/")[0]
    return within(domain, _KUBERNETES) and not within(domain, _KUBELETS) and key not in TO_A_KUBELET
