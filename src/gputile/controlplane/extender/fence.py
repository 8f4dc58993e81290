"""Makes Bindings of an earlier extender impossible before its successor decides.

A Binding names the resourceVersion of its pod. Once the pod has another version, the Binding is
never executed, even if it was delayed for long in a socket or in an API server that hung. So an
extender that may have a predecessor writes to every pod that may have such a Binding. After that,
it lists the cluster. Executed Bindings are in the list, and all others have become impossible. This
method depends neither on the extender's clock nor on the API server's clock.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gputile.api.core import Pod
from gputile.controlplane.event_loop import run_concurrently
from gputile.controlplane.extender.binder import ANSWER_LOST_FOR_GOOD_S, PodApi
from gputile.core.devices.request import requests_gputile_gpu
from gputile.kube.errors import KubeError

log = logging.getLogger(__name__)

PAUSE_S = 1.0


async def fence_off(
    pod_api: PodApi,
    monotonic: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Write to every pod that may have a Binding of a predecessor in progress.

    Failed writes are repeated for ``ANSWER_LOST_FOR_GOOD_S``. After that, the current pass over the
    pods is the last one. The last pass skips the remaining pods once ``event_loop.AT_ONCE`` writes
    in a row have failed, because each write may take as long as its time-out.

    Raises:
        KubeError: the pods cannot be listed.
    """
    last_pass_at = monotonic() + ANSWER_LOST_FOR_GOOD_S
    has_failed = False

    def is_last_pass() -> bool:
        return monotonic() >= last_pass_at

    async def fence(pod: Pod) -> bool:
        nonlocal has_failed
        try:
            await pod_api.fence(pod.metadata.namespace, pod.metadata.name)
        except KubeError as error:
            if not has_failed:
                log.warning(
                    "a pod cannot be fenced off from earlier Bindings: %s",
                    error,
                    extra={"pod": pod.key},
                )
            has_failed = True
            return False
        return True

    left = [pod for pod in await pod_api.unbound() if _may_have_binding(pod)]
    log.info("fencing pods off from earlier Bindings", extra={"pods": len(left)})
    while left := await run_concurrently(left, fence, is_last_pass):
        if is_last_pass():
            log.warning("taking over before all pods are fenced off", extra={"pods": len(left)})
            return
        await sleep(PAUSE_S)


def _may_have_binding(pod: Pod) -> bool:
    """Return whether the API server may still execute an extender's Binding of this pod.

    Also true for a pod with an invalid request, which an earlier configuration may have allowed.
    """
    is_closed = (
        pod.spec.node_name
        or pod.finished
        or pod.spec.scheduling_gates
        or pod.metadata.deletion_timestamp
    )
    return not is_closed and requests_gputile_gpu(pod)
