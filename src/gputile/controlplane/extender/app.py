"""Serves the extender over HTTP: it decodes requests, encodes answers, and answers every request."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from gputile.api.conversion import ConversionError, decode, has_more_items
from gputile.api.quantity import MIB
from gputile.api.webhooks import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderPreemptionArgs,
    FilterResult,
    HostPriority,
)
from gputile.controlplane.extender.handlers import BadRequest, ExtenderHandlers
from gputile.controlplane.extender.metrics import ExtenderMetrics
from gputile.controlplane.leader_election import NotReady
from gputile.support.http_server import BodyReader, BodyRefused, Handler, monitoring_routes, routed

log = logging.getLogger(__name__)

# kube-scheduler sends one pod and some thousand names, or the victims on a tenth of the nodes; a body beyond this is
# not from it. One of many tiny items would hold the loop for seconds.
LARGEST_BODY = 8 * MIB
MOST_ITEMS = {"preempt": 262_144}
MOST_ITEMS_ELSE = 81_920

# Nothing is booked for it, so that each replica answers.
_OF_EVERY_REPLICA = ("prioritize-claims",)

_args = msgspec.json.Decoder(ExtenderArgs)
_binding_args = msgspec.json.Decoder(ExtenderBindingArgs)
_preemption_args = msgspec.json.Decoder(ExtenderPreemptionArgs)
_encoder = msgspec.json.Encoder()

Answer = tuple[Any, str]  # what is encoded, and the outcome that the metrics count

# How a verb says that it could not be answered; prioritize and preempt have no field for it.
_FAILURES: dict[str, Callable[[str], Any]] = {
    "filter": lambda text: FilterResult(error=text),
    "bind": lambda text: ExtenderBindingResult(error=text),
}


@dataclass(frozen=True, slots=True)
class ExtenderGate:
    """Admits calls: ``admit`` raises ``NotReady`` where this replica may not act.

    ``not_ready`` returns why this replica is not ready to be asked, None where it is.
    """

    admit: Callable[[], Awaitable[None]]
    not_ready: Callable[[], str | None]


def _answers(handlers: ExtenderHandlers) -> dict[str, Callable[[bytes], Awaitable[Answer]]]:
    """Return the verbs as functions from a request's body to an answer."""

    async def filtering(body: bytes) -> Answer:
        result = handlers.filter(decode(body, _args))
        return result, "fits" if result.node_names else "refused"

    def ranking(answer: Callable[[ExtenderArgs], list[HostPriority]]) -> Callable[[bytes], Awaitable[Answer]]:
        async def run(body: bytes) -> Answer:
            return answer(decode(body, _args)), "scored"

        return run

    async def bind(body: bytes) -> Answer:
        result = await handlers.bind(decode(body, _binding_args))
        return result, "failed" if result.error else "bound"

    async def preempt(body: bytes) -> Answer:
        return await handlers.preempt(decode(body, _preemption_args)), "answered"

    return {
        "filter": filtering,
        "prioritize": ranking(handlers.prioritize),
        "prioritize-without-gpus": ranking(handlers.prioritize_without_gpus),
        "prioritize-claims": ranking(handlers.prioritize_claims),
        "bind": bind,
        "preempt": preempt,
    }


class _VerbEndpoint:
    """One verb over HTTP: it reads the body, asks the gate, answers, and counts what came of it."""

    def __init__(
        self,
        verb: str,
        answer: Callable[[bytes], Awaitable[Answer]],
        gate: ExtenderGate,
        metrics: ExtenderMetrics,
        bodies: BodyReader,
    ) -> None:
        self._verb = verb
        self._answer = answer
        self._gate = gate
        self._requests, self._seconds = metrics.requests, metrics.seconds.labels(verb)
        self._bodies = bodies
        self._most_items = MOST_ITEMS.get(verb, MOST_ITEMS_ELSE)

    async def serve(self, request: web.BaseRequest) -> web.Response:
        begin, verb = time.perf_counter(), self._verb
        try:
            body = await self._bodies.body(request)
            if has_more_items(body, self._most_items):
                raise BadRequest(f"the body has more than {self._most_items} items of JSON")
            if verb not in _OF_EVERY_REPLICA:
                await self._gate.admit()
            elif why := self._gate.not_ready():
                raise NotReady(why)
            result, outcome = await self._answer(body)
        except ConversionError as error:
            return self._failed(f"{verb}: the request is not what kube-scheduler sends: {error}", 400, "bad_request")
        except BodyRefused as refused:
            return self._failed(f"{verb}: {refused}", refused.status, "bad_request")
        except BadRequest as error:
            return self._failed(f"{verb}: {error}", 400, "bad_request")
        except NotReady as error:
            return self._failed(f"{verb}: {error}", 503, "not_ready")
        except Exception as error:  # the boundary: one bad call must not take the others down
            log.exception("%s failed", verb)
            return self._failed(f"{verb}: internal error: {error!r}", 500, "error")
        self._requests.labels(verb, outcome).inc()
        self._seconds.observe(time.perf_counter() - begin)
        return _json(result)

    def _failed(self, text: str, status: int, outcome: str) -> web.Response:
        self._requests.labels(self._verb, outcome).inc()
        failure = _FAILURES.get(self._verb)
        return _json(failure(text)) if failure is not None else web.Response(status=status, text=text)


def create_app(
    handlers: ExtenderHandlers, metrics: ExtenderMetrics, gate: ExtenderGate, intake: BodyReader | None = None
) -> Handler:
    """Return the handler of verbs, probes and metrics, which reads what it is asked by ``intake``."""
    bodies = BodyReader(LARGEST_BODY) if intake is None else intake
    routes = monitoring_routes(metrics.registry, gate.not_ready)
    for verb, answer in _answers(handlers).items():
        routes[f"/{verb}"] = "POST", _VerbEndpoint(verb, answer, gate, metrics, bodies).serve
    return routed(routes)


def _json(result: Any) -> web.Response:
    return web.Response(body=_encoder.encode(result), content_type="application/json")
