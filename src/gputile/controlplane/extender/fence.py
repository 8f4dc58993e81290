"""Makes Bindings that an earlier extender sent impossible, before its successor decides.

A Binding names the resourceVersion of its pod, so it is never executed once the pod has another one, however long it
was under way: in a socket, or in an API server that stood still. So whoever may have a predecessor writes to every
pod that such a Binding may be for, and lists the cluster after that. What was executed before is in the list, and what
was not never will be. This needs no clock, neither ours nor the API server's.
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
    """Write to every pod that a Binding of a predecessor may be under way for.

    Pods that cannot be written to are tried again until ``ANSWER_LOST_FOR_GOOD_S`` after the begin, and then left.
    From then on, if ``event_loop.AT_ONCE`` writes in a row fail, the pods that were not tried yet are left too:
    each write may take its whole time.

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
    """Yield those that the API server would take a Binding for, and that an extender would send one with GPUs for."""
    for pod in pods:
        if pod.spec.node_name or pod.finished or pod.spec.scheduling_gates or pod.metadata.deletion_timestamp:
            continue
        try:
            request = parse_request(pod, configuration.unit_mib, configuration.trust_group)
        except RequestError:
            # By another configuration it may have been a valid one.
            yield pod
            continue
        if request is not None:
            yield pod


async def _each(pod_api: PodApi, pods: list[Pod], over: Callable[[], bool]) -> list[Pod]:
    """Write to each pod, some at a time; return those that could not be written to, or are left."""
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
