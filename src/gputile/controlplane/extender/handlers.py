"""Handles the extender's verbs, with typed arguments and results.

If a pod breaks a rule, it fits no node, and the result states the rule. A call fails only for other
reasons: the cluster is not listed yet, another replica leads, or the call is malformed.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from gputile.api.core import Pod
from gputile.api.webhooks import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
)
from gputile.api.well_known import EventReason
from gputile.controlplane.evictable_pods import EvictablePods
from gputile.controlplane.extender.binder import Binder, BindError
from gputile.core.scheduling.eviction_rules import EvictionRules
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.core.scheduling.pod_filter import (
    filter_pod,
    rank_pod,
    rank_pod_with_claims,
    rank_pod_without_gpus,
)
from gputile.core.scheduling.victim_choice import completed_victims, may_preempt

log = logging.getLogger(__name__)

# Filter stores at most so many pods, and so many bytes of their JSON, for bind. Bind reads other
# pods from the API server.
_PODS_REMEMBERED, _BYTES_REMEMBERED = 8192, 8 << 20


class BadRequest(Exception):
    """The call is malformed. The message says what is wrong and what to change."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event about a pod. With ``latest``, it updates an existing event with the same reason."""

    pod: Pod
    warning: bool
    reason: EventReason
    message: str
    latest: bool = False


class ExtenderHandlers:
    """Answers the extender's verbs.

    ``bind`` and ``preempt`` are called only for pods that request GPUs as extended resources.
    """

    def __init__(
        self,
        engine: PlacementEngine,
        binder: Binder,
        notify: Callable[[PodEvent], None],
        refused: Callable[[], None],
        unix_ns: Callable[[], int] = time.time_ns,
        *,
        evictable: EvictablePods,
    ) -> None:
        self._engine = engine
        self._binder = binder
        self._evictable = evictable
        self._notify = notify
        self._refused = refused
        self._unix_ns = unix_ns
        # the pod and the length of its JSON, by UID
        self._seen: OrderedDict[str, tuple[Pod, int]] = OrderedDict()
        self._seen_bytes = 0

    def filter(self, args: ExtenderArgs) -> FilterResult:
        """Return the named nodes that the pod fits, and why it does not fit the others."""
        pod, names = args.pod, _names(args)
        self._remember(pod)
        verdict = filter_pod(self._engine, pod, names, self._unix_ns())
        found = verdict.nodes
        if verdict.invalid is not None:
            self._notify(PodEvent(pod, True, EventReason.INVALID_GPU_REQUEST, verdict.invalid))
        if verdict.lacks_gpus:
            self._refused()
        if verdict.no_fit is not None:
            self._notify(PodEvent(pod, True, EventReason.NO_GPU_FITS, verdict.no_fit, latest=True))
        return FilterResult(
            node_names=found.feasible,
            failed_nodes=found.refused,
            failed_and_unresolvable_nodes=found.unresolvable,
        )

    def prioritize(self, args: ExtenderArgs) -> list[HostPriority]:
        names = _names(args)
        return _priorities(names, rank_pod(self._engine, args.pod, names))

    def prioritize_without_gpus(self, args: ExtenderArgs) -> list[HostPriority]:
        """Return a score from 0 to 10 for each named node, for a pod without GPUs.

        The list is empty for other pods. kube-scheduler calls this verb if an extender is
        configured for all pods.
        """
        names = _names(args)
        ranks = rank_pod_without_gpus(self._engine, args.pod, names)
        return _priorities(names, ranks) if ranks is not None else []

    def prioritize_claims(self, args: ExtenderArgs) -> list[HostPriority]:
        """Return a score from 0 to 10 for each named node, for a pod with ResourceClaims."""
        names = _names(args)
        ranks, invalid = rank_pod_with_claims(self._engine, args.pod, names)
        if invalid:
            self._notify(PodEvent(args.pod, True, EventReason.INVALID_GPU_REQUEST, invalid))
        return _priorities(names, ranks)

    async def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        try:
            pod = await self._pod(args)
            gpus = await self._binder.bind(pod, args.node)
        except BindError as error:
            log.warning(
                "not bound",
                extra={"pod": f"{args.pod_namespace}/{args.pod_name}", "why": str(error)},
            )
            return ExtenderBindingResult(error=str(error))
        if gpus:
            log.info("bound", extra={"pod": pod.key, "node": args.node, "gpus": gpus})
            info = self._engine.ledger.info_of(args.node)
            limits = "" if info is None or info.isolates_memory else "; memory is not limited there"
            self._notify(
                PodEvent(
                    pod, False, EventReason.GPU_ASSIGNED, f"{gpus} of node {args.node}{limits}"
                )
            )
        return ExtenderBindingResult()

    async def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        """Return the candidate nodes whose GPUs can be freed for the pod, with the victims on each.

        kube-scheduler proposes the nodes and the first victims. All of these victims stay in the
        result, and more are added if too few GPUs would become free. A node is left out if no
        evictions free enough GPUs there. The event loop may handle other calls between two nodes.
        """
        proposed = args.node_name_to_meta_victims or {}
        if not may_preempt(self._engine, args.pod):
            return ExtenderPreemptionResult(node_name_to_meta_victims={})
        request = self._engine.request(args.pod)
        if request is None:
            return ExtenderPreemptionResult(node_name_to_meta_victims=proposed)
        booking = self._engine.ledger.booking(args.pod.metadata.uid)
        if booking is not None and booking.preemption:
            # Pods are already being evicted for this pod.
            return ExtenderPreemptionResult(node_name_to_meta_victims={})
        priority = args.pod.spec.priority or 0
        facts, budgets = self._evictable.facts, EvictionRules({}, {}, budget=self._evictable.budget)
        answer: dict[str, MetaVictims] = {}
        for node, candidate in proposed.items():
            first = [victim.uid for victim in candidate.pods or []]
            leaving = completed_victims(self._engine, request, node, first, priority, facts)
            if leaving:
                more = sorted(leaving.difference(first))
                added = len(budgets.over_budget([*first, *more])) - len(budgets.over_budget(first))
                answer[node] = MetaVictims(
                    pods=[MetaPod(uid=uid) for uid in [*first, *more]],
                    num_pdb_violations=candidate.num_pdb_violations + added,
                )
            await asyncio.sleep(0)
        return ExtenderPreemptionResult(node_name_to_meta_victims=answer)

    def _remember(self, pod: Pod) -> None:
        _, before = self._seen.pop(pod.metadata.uid, (pod, 0))
        size = len(msgspec.json.encode(pod))
        self._seen[pod.metadata.uid] = pod, size
        self._seen_bytes += size - before
        while len(self._seen) > _PODS_REMEMBERED or self._seen_bytes > _BYTES_REMEMBERED:
            _, (_, gone) = self._seen.popitem(last=False)
            self._seen_bytes -= gone

    async def _pod(self, args: ExtenderBindingArgs) -> Pod:
        pod, _ = self._seen.get(args.pod_uid, (None, 0))
        if pod is not None and pod.key == f"{args.pod_namespace}/{args.pod_name}":
            return pod
        return await self._binder.read(args.pod_namespace, args.pod_name, args.pod_uid)


def _names(args: ExtenderArgs) -> Sequence[str]:
    if args.node_names is None:
        raise BadRequest(
            "NodeNames is missing: set nodeCacheCapable: true for this extender in kube-scheduler"
        )
    return args.node_names


def _priorities(names: Sequence[str], ranks: Sequence[int]) -> list[HostPriority]:
    return [HostPriority(host=name, score=rank) for name, rank in zip(names, ranks, strict=True)]
