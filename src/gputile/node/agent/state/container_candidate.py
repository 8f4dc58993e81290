"""Names a container that the kubelet may be asking for, since no call of it says whose it is."""

from dataclasses import dataclass

from gputile.core.devices.request import ContainerRequest
from gputile.node.agent.state.known_pods import KnownPod


@dataclass(frozen=True, slots=True)
class ContainerCandidate:
    """A container that the kubelet may be asking for.

    ``container`` is "" where it is one of several that were let start, of this pod or others, and nobody knows which.
    ``pod`` is None for a pod of ``key`` that the API server does not know: a static pod that has no mirror yet.
    ``request`` is None for such a pod too, and for one whose request breaks a rule: admission has not seen either.
    ``sure`` says that nothing speaks against it; otherwise it is worth asking the API server first. ``known`` is
    False where the pod known by this name does not ask for this resource: the caller can only be a newer pod of the
    same name. ``guessed`` says that the kubelet did not list anything, so that the caller may be a pod nobody knows.
    """

    key: str
    container: str
    pod: KnownPod | None = None
    request: ContainerRequest | None = None
    sure: bool = False
    known: bool = True
    guessed: bool = False
