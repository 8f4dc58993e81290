"""Reads ``kind: NodePool``, and names every mistake at once."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gputile.api.conversion import ConversionError, convert
from gputile.api.quantity import QuantityError, parse_mib
from gputile.api.well_known import SMALLEST_UNIT_MIB, Mode
from gputile.api.wording import unsupported
from gputile.core.devices.inventory import MOST_MIB
from gputile.tools.nodepool.labels import TO_A_KUBELET, Told, told, within
from gputile.tools.nodepool.pool import WAYS, NodePool


class DescriptionError(ValueError):
    """The description cannot be used; the text names the field, the rule and the valid values."""


def load_nodepool(data: Any) -> NodePool:
    """Return the description in ``data``, what a YAML parser made of the file.

    Raises:
        DescriptionError: it cannot be used.
    """
    try:
        pool = convert(data, NodePool)
    except ConversionError as error:
        raise DescriptionError(str(error)) from error
    problems = _problems(pool) or list(meaning_problems(pool))
    if problems:
        raise DescriptionError("; ".join(problems))
    return pool


def _problems(pool: NodePool) -> list[str]:
    found = [*_missing(pool), *_sizes(pool), *syntax_problems(pool.labels)]
    ways = WAYS[pool.provider]
    if pool.way not in ways:
        found.append(f"way: for {pool.provider}: {unsupported(pool.way, ways)}")
    if pool.min_nodes > pool.max_nodes:
        found.append(f"minNodes is {pool.min_nodes}, more than maxNodes, {pool.max_nodes}")
    if pool.autoscaler == "karpenter" and pool.provider != "eks":
        found.append("autoscaler: karpenter is written for eks only; use cluster-autoscaler")
    if pool.provider == "aks" and not (len(pool.name) <= 12 and pool.name.isalnum()):
        found.append(f"name is {pool.name!r}: AKS takes at most 12 letters and digits")
    if pool.way == "managed-driver" and pool.mode is not Mode.EXCLUSIVE:
        found.append(
            f"mode is {pool.mode.value!r}: with managed-driver GKE's installer comes in the pod of GKE's device "
            "plugin, which serves whole GPUs only; use way own-driver, or mode default"
        )
    return found


def _missing(pool: NodePool) -> list[str]:
    needed = {"eks": ("location",), "aks": ("resource_group",), "gke": ("location", "accelerator")}
    names = {"location": "location", "resource_group": "resourceGroup", "accelerator": "accelerator"}
    found = [f"{names[f]} is missing: {pool.provider} needs it" for f in needed[pool.provider] if not getattr(pool, f)]
    other = [field for field in names if getattr(pool, field) and field not in needed[pool.provider]]
    return found + [f"{names[field]} means nothing for {pool.provider}: leave it out" for field in other]


def _sizes(pool: NodePool) -> list[str]:
    found, sizes = [], {}
    for field, text in (("gpuMemoryUnit", pool.gpu_memory_unit), ("gpus.memory", pool.gpus.memory)):
        try:
            sizes[field] = parse_mib(text)
        except QuantityError as error:
            found.append(f"{field}: {error}")
    unit, gpu = sizes.get("gpuMemoryUnit", SMALLEST_UNIT_MIB), sizes.get("gpus.memory")
    if unit < SMALLEST_UNIT_MIB:
        found.append(f"gpuMemoryUnit is {pool.gpu_memory_unit}: the smallest valid unit is {SMALLEST_UNIT_MIB}MiB")
    elif gpu is not None and gpu > MOST_MIB:
        found.append(f"gpus.memory is {pool.gpus.memory}: the most that a GPU may have is {MOST_MIB}MiB")
    elif gpu is not None and gpu < unit:
        found.append(f"gpus.memory is {pool.gpus.memory}: a GPU holds not one unit of {pool.gpu_memory_unit}")
    return found


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
