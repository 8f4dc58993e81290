"""Says what to do about a component that is not ready, by what the cluster says about it (U11).

The table is ``remedies.toml``.
"""

import functools
import pkgutil
import re
import tomllib
from collections.abc import Mapping


def remedy_of(reason: str, namespace: str, workload: str) -> str:
    """Return what to do about ``reason``, "" where nothing is known.

    ``workload`` is the component's own object, as ``deployment/gputile-webhook``.
    """
    for pattern, remedy in _remedies().items():
        if re.search(pattern, reason):
            return remedy.format(namespace=namespace, workload=workload)
    return ""


@functools.cache
def _remedies() -> Mapping[str, str]:
    return tomllib.loads((pkgutil.get_data(__name__, "remedies.toml") or b"").decode())
