"""Makes Bindings of an earlier extender impossible before its successor decides.

A Binding names the resourceVersion of its pod, so it is never executed once the pod has another version, however long
it was delayed in a socket or in an API server that hung. So an extender that may have a predecessor writes to every pod
that such a Binding may be for, and then lists the cluster. A Binding that was executed is in the list, and all others
have become impossible. This depends on no clock, neither the extender's nor the API server's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.core import Pod
from gputile.controlplane.event_loop import several_at_once
from gputile.controlplane.extender.binder import ANSWER_LOST_FOR_GOOD_S, PodApi
from gputile.core.devices.request import RequestError, parse_request
from gputile.kube.errors import KubeError

log = logging.getLogger(__name__)

PAUSE_S = 1.0


async def fence_off(
    pod_api: PodApi,
    configuration: Configuration,
    monotonic: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Write to every pod that may have a Binding of a predecessor in progress.

    Failed writes are repeated for ``ANSWER_LOST_FOR_GOOD_S``. After that, the current pass over the pods is the last
    one. It skips the remaining pods once ``event_loop.AT_ONCE`` writes in a row have failed, since each write may take
    as long as its time-out.

    Raises:
        KubeError: the pods cannot be listed.
    """
    begun = monotonic()

    def over() -> bool:
        return monotonic() - begun >= ANSWER_LOST_FOR_GOOD_S

    left = list(_may_be_bound(await pod_api.unbound(), configuration))
    log.info("fencing pods off from earlier Bindings", extra={"pods": len(left)})
    while left:
        left = await _each(pod_api, left, over)
        if not left:
            return
        if over():
            log.warning("deciding although pods cannot be fenced off", extra={"pods": len(left)})
            return
        await sleep(PAUSE_S)


def _may_be_bound(pods: Iterable[Pod], configuration: Configuration) -> Iterator[Pod]:
    """Yield the pods for which the API server accepts a Binding and an extender may have sent one with GPUs."""
    for pod in pods:
        if pod.spec.node_name or pod.finished or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp:
            continue
        try:
            request = parse_request(pod, configuration.unit_mib, configuration.trust_group)
        except RequestError:
            # The request may have been valid with an earlier configuration.
            yield pod
            continue
        if request is not None:
            yield pod


async def _each(pod_api: PodApi, pods: list[Pod], over: Callable[[], bool]) -> list[Pod]:
    """Write to the pods, some at a time; return those that could not be written or were skipped."""
    told = False

    async def fence(pod: Pod) -> bool:
        nonlocal told
        try:
            await pod_api.fence(pod.metadata.namespace, pod.metadata.name)
        except KubeError as error:
            if not told:
                log.warning("a pod cannot be fenced off: %s", error, extra={"pod": pod.key})
            told = True
            return False
        return True

    return await several_at_once(pods, fence, over)
