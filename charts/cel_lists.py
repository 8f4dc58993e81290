"""Writes the lists in the CEL of ``examples/webhook`` from the constants that the rules in Python
go by.

``make policies`` runs it. A list is known by the CEL that stands before it; one that says the same
already keeps its line breaks.
"""

import re
import textwrap
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from gputile.api.config.v1alpha1 import AdmissionConfiguration
from gputile.api.well_known import GPU_RESOURCES, MPS_THREADS_ANNOTATION, TIME_WEIGHT_ANNOTATION
from gputile.core.admission import isolation_bypass, review

DIRECTORY = Path(__file__).resolve().parents[1] / "examples" / "webhook"
_LIST = r"(?<=\s)\[\s*((?:'[^']*',?\s*)+)\]"
_WIDTH, _INDENT = 120, " " * 6


def _directories(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{path}/" for path in paths)


_TOOLKIT_PATHS = (
    *isolation_bypass.TOOLKIT_PATHS,
    *(f"/var{path}" for path in isolation_bypass.TOOLKIT_PATHS),
)
POLICIES = {
    "request.userInfo.username in ": AdmissionConfiguration().trusted_users,
    ".filter(k, k in ": review.PROTECTED,
    ".exists(k, (k in ": review.PROTECTED,
    "r in ": GPU_RESOURCES,
    "e.name in ": isolation_bypass.ENVIRONMENT,
    "e.value in ": isolation_bypass.HARMLESS,
    ".filter(k,\n      ": isolation_bypass.DEVICE_ANNOTATIONS,
    "annotations.exists(k,\n      ": isolation_bypass.DEVICE_ANNOTATIONS,
    "a.upperAscii()) in ": isolation_bypass.CAPABILITIES,
    "- name: cardPaths\n    expression: >-\n      ": isolation_bypass.GPU_PATHS,
    "- name: nodePaths\n    expression: >-\n      ": isolation_bypass.NODE_PATHS,
    "'nvidia-container-devices' in m.parts)) ||\n      ": _directories(_TOOLKIT_PATHS),
    "startsWith('/tmp/nvidia-mps/') ||\n      ": _directories(isolation_bypass.LIMIT_PATHS),
}
WEBHOOKS = {
    "request.userInfo.username in ": AdmissionConfiguration().trusted_users,
    "r in ": GPU_RESOURCES,
    "annotations.exists(k,\n      ": isolation_bypass.DEVICE_ANNOTATIONS,
    ".exists(k, (k in ": review.PROTECTED,
    ".exists(k,\n      k in ": review.PROTECTED,
    "|| (k in ": (review.STAMPED, TIME_WEIGHT_ANNOTATION, MPS_THREADS_ANNOTATION),
    "g.name == 'gputile.io/gang') ||\n      ": review.FIXED,
}
FILES = {"policies.yaml": POLICIES, "webhook.yaml": WEBHOOKS}


def written(text: str, lists: dict[str, tuple[str, ...]]) -> str:
    """Return a manifest with its lists as the constants have them.

    Raises:
        ValueError: a list stands nowhere, or one in the manifest is written from no constant.
    """
    known = 0
    for before, values in lists.items():
        pattern = re.compile(re.escape(before) + _LIST)
        text, found = pattern.subn(partial(_as_constant, values), text)
        if not found:
            raise ValueError(f"no list stands behind {before!r}")
        known += found
    if known != len(re.findall(_LIST, text)):
        raise ValueError("a list in the manifest is written from no constant")
    return text


def _as_constant(values: tuple[str, ...], match: re.Match[str]) -> str:
    if tuple(re.findall(r"'([^']*)'", match[1])) == values:
        return match[0]
    listed = ", ".join(f"'{value}'" for value in values)
    quoted = textwrap.fill(listed, _WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False)
    before = match[0][: match.start(1) - match.start() - 1].rsplit("[", 1)[0]
    return f"{before}[\n{_INDENT}{quoted}]"


if __name__ == "__main__":
    for name, lists in FILES.items():
        (DIRECTORY / name).write_text(
            written((DIRECTORY / name).read_text(encoding="utf-8"), lists), encoding="utf-8"
        )
