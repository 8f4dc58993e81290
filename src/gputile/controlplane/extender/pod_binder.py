"""What the extender needs of the API server beyond its watches."""

from collections.abc import Sequence
from typing import Protocol

from gputile.api.core import Binding, Pod


class PodBinder(Protocol):
    """The calls of a bind, and of a replica that begins. Errors are those of ``gputile.kube.errors``."""

    async def bind(self, binding: Binding) -> None:
        """POST the Binding."""

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod from the API server itself, None where there is none of this name."""

    async def fence(self, namespace: str, name: str) -> Pod | None:
        """Write to a pod, so that it gets another resourceVersion; return it as it is then, None where it is gone."""

    async def unbound(self) -> Sequence[Pod]:
        """Return all pods that have no node, read from the API server itself."""
