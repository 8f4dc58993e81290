"""Checks the labels by which a namespace chooses a Pod Security Standard, as the API server does."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gputile.api.wording import shown
from gputile.tools.simulator.rules.values.fields import Broken

_PREFIX: Final = "pod-security.kubernetes.io/"
_MODES: Final = ("audit", "enforce", "warn")
_LEVELS: Final = ("privileged", "baseline", "restricted")
_VERSION: Final = re.compile(r"latest|v1\.(0|[1-9][0-9]*)", re.ASCII)


def enforced_level(labels: Mapping[str, str]) -> str:
    """Return the level that a namespace's ``labels`` hold its pods to; "" where they hold them to none."""
    level = labels.get(f"{_PREFIX}enforce", "")
    return level if level in _LEVELS[1:] else ""


def broken_security_levels(path: str, labels: Mapping[str, str]) -> Iterator[Broken]:
    """Yield what is wrong with a namespace's ``labels`` that name a level of pod security, or its version."""
    for mode in _MODES:
        level, version = labels.get(f"{_PREFIX}{mode}"), labels.get(f"{_PREFIX}{mode}-version")
        if level is not None and level not in _LEVELS:
            rule = f"must be one of {', '.join(_LEVELS)}"
            yield f"{path}[{shown(_PREFIX + mode)}]", f"Invalid value: {shown(level)}: {rule}"
        if version is not None and not _VERSION.fullmatch(version):
            where = f"{path}[{shown(f'{_PREFIX}{mode}-version')}]"
            yield where, f'Invalid value: {shown(version)}: must be "latest" or "v1.x"'
