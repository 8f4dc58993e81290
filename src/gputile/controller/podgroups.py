"""PodGroup objects of scheduler-plugins (``scheduling.x-k8s.io/v1alpha1``), where the cluster has them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from gputile.api.core import ObjectMeta
from gputile.kube.connection import Connection
from gputile.kube.errors import KubeError, NotFound
from gputile.kube.reflector import Event, Reflector

log = logging.getLogger(__name__)

PATH: Final = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"
LOOK_AGAIN_SECONDS = 30.0


class PodGroupSpec(msgspec.Struct, rename="camel", gc=False):
    """The part of a PodGroup's spec that says how many pods start together."""

    min_member: int = 0


class PodGroup(msgspec.Struct, rename="camel", gc=False):
    """scheduling.x-k8s.io/v1alpha1 PodGroup."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


async def watch_pod_groups(
    connection: Connection, on_event: Callable[[Event[PodGroup]], None], look_again: float = LOOK_AGAIN_SECONDS
) -> NoReturn:
    """Watch PodGroups, for ever; where their kind is not installed, look now and then whether it is by now."""
    complaint = ""
    while True:
        try:
            await connection.get(PATH, {"limit": "1"})
            break
        except NotFound:
            pass
        except KubeError as error:
            if str(error) != complaint:
                complaint = str(error)
                log.warning("PodGroups cannot be read: %s", error)
        await asyncio.sleep(look_again)
    await Reflector(connection, PATH, PodGroup, on_event).run()
    raise AssertionError("a reflector never ends")
