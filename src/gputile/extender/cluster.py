"""What the extender needs of the API server beyond its watches."""

from typing import Protocol

from gputile.api.core import Binding, Pod


class Cluster(Protocol):
    """The two calls of a bind. Errors are those of ``gputile.kube.errors``."""

    async def bind(self, binding: Binding) -> None:
        """POST the Binding."""

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Read a pod from the API server itself, None where there is none of this name."""
