"""Reads the RuntimeClasses of a live cluster, for pods that name one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gputile.api.workloads import ListedRuntimeClass
from gputile.cli.options.common import Reach
from gputile.cli.reads.bounded_reads import read_or_leave, reads
from gputile.cli.reads.named_fields import names_field
from gputile.kube.errors import Forbidden, NotFound
from gputile.kube.objects import ObjectDecoder, list_pages

if TYPE_CHECKING:
    from gputile.tools.simulator.admission.runtime_classes import RuntimeClasses
    from gputile.tools.simulator.documents.manifests import Manifest

_PATH: Final = "/apis/node.k8s.io/v1/runtimeclasses"
_NAMING: Final = frozenset({"runtimeClassName"})


def read_runtimes(reach: Reach, manifests: "Iterable[Manifest]") -> "tuple[RuntimeClasses | None, str | None]":
    """Return the cluster's RuntimeClasses; None, and why, where they are not known; None alone if none is named.

    Leaves the program where the API server fails.
    """
    from gputile.tools.simulator.admission.runtime_classes import listed_runtimes

    if not any(names_field(each.body, _NAMING) for each in manifests if not each.described):
        return None, None

    async def read() -> "tuple[RuntimeClasses | None, str | None]":
        async with reads(reach) as connection:
            try:
                _, listed = await list_pages(connection, _PATH, ObjectDecoder(ListedRuntimeClass), {})
            except (Forbidden, NotFound) as error:
                return None, str(error)
        for each in listed.unreadable:
            return None, f"{each.name} cannot be read: {each.why}"
        return listed_runtimes(listed.objects), None

    return read_or_leave(read())
