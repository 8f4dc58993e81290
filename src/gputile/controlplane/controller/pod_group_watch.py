"""Watches the PodGroup objects of scheduler-plugins where the cluster has them."""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from gputile.api.other_groups import POD_GROUPS_PATH, PodGroup
from gputile.kube.client import Connection
from gputile.kube.errors import KubeError, NotFound
from gputile.kube.objects import WatchEvent
from gputile.kube.reflector import Reflector

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 30.0


async def watch_pod_groups(
    connection: Connection,
    on_event: Callable[[WatchEvent[PodGroup]], None],
    on_none: Callable[[], None],
    look_again: float = LOOK_AGAIN_SECONDS,
) -> NoReturn:
    """Watch PodGroups, for ever; where their kind is not installed, look now and then whether it is by now.

    ``on_none`` is called once where it is not.
    """
    complaint, told = "", False
    while True:
        try:
            await connection.get(POD_GROUPS_PATH, {"limit": "1"})
            break
        except NotFound:
            if not told:
                on_none()
            told = True
        except KubeError as error:
            if str(error) != complaint:
                complaint = str(error)
                log.warning("PodGroups cannot be read: %s", error)
        await asyncio.sleep(look_again)
    await Reflector(connection, POD_GROUPS_PATH, PodGroup, on_event).run()
    raise AssertionError("a reflector never ends")
