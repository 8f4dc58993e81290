"""Serves the extender over HTTP: decodes requests, calls the handlers, and encodes responses."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
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
)
from gputile.controlplane.extender.handlers import BadRequest, ExtenderHandlers
from gputile.controlplane.extender.metrics import ExtenderMetrics
from gputile.controlplane.leader_election import NotReady
from gputile.support.http_server import BodyReader, BodyRefused, Handler, monitoring_routes, routed

log = logging.getLogger(__name__)

# kube-scheduler sends one pod and some thousand names, or the victims on a tenth of the nodes. Larger bodies are not
# from kube-scheduler, and decoding very many items would block the event loop for seconds.
LARGEST_BODY = 8 * MIB
MOST_ITEMS = {"preempt": 262_144}
MOST_ITEMS_ELSE = 81_920

# The verbs that book nothing, so that every replica answers them.
_OF_EVERY_REPLICA = ("prioritize-claims",)

_encoder = msgspec.json.Encoder()

# The responses of verbs that have a field for an error; prioritize and preempt have none.
_FAILURES: dict[str, Callable[[str], Any]] = {
    "filter": lambda text: FilterResult(error=text),
    "bind": lambda text: ExtenderBindingResult(error=text),
}


@dataclass(frozen=True, slots=True)
class _Verb:
    """``answer`` is called with the decoded body; ``outcome`` names its result in the metrics."""

    decoder: msgspec.json.Decoder[Any]
    answer: Callable[[Any], Any]
    outcome: Callable[[Any], str]


def _verbs(handlers: ExtenderHandlers) -> dict[str, _Verb]:
    args, bind_args = msgspec.json.Decoder(ExtenderArgs), msgspec.json.Decoder(ExtenderBindingArgs)
    preempt_args = msgspec.json.Decoder(ExtenderPreemptionArgs)
    return {
        "filter": _Verb(args, handlers.filter, lambda result: "fits" if result.node_names else "refused"),
        "prioritize": _Verb(args, handlers.prioritize, lambda _: "scored"),
        "prioritize-without-gpus": _Verb(args, handlers.prioritize_without_gpus, lambda _: "scored"),
        "prioritize-claims": _Verb(args, handlers.prioritize_claims, lambda _: "scored"),
        "bind": _Verb(bind_args, handlers.bind, lambda result: "failed" if result.error else "bound"),
        "preempt": _Verb(preempt_args, handlers.preempt, lambda _: "answered"),
    }


class _VerbEndpoint:
    """One verb over HTTP: reads the body, answers if this replica may act, and counts the outcome."""

    def __init__(
        self,
        name: str,
        verb: _Verb,
        admit: Callable[[], Awaitable[None]],
        metrics: ExtenderMetrics,
        bodies: BodyReader,
    ) -> None:
        self._name, self._verb, self._admit = name, verb, admit
        self._requests, self._seconds = metrics.requests, metrics.seconds.labels(name)
        self._bodies = bodies
        self._most_items = MOST_ITEMS.get(name, MOST_ITEMS_ELSE)

    async def serve(self, request: web.BaseRequest) -> web.Response:
        begin, verb = time.perf_counter(), self._name
        try:
            body = await self._bodies.body(request)
            if has_more_items(body, self._most_items):
                raise BadRequest(f"the body has more than {self._most_items} items of JSON")
            await self._admit()
            result = self._verb.answer(decode(body, self._verb.decoder))
            if isawaitable(result):
                result = await result
        except ConversionError as error:
            return self._failed(f"{verb}: the request is not what kube-scheduler sends: {error}", 400, "bad_request")
        except BodyRefused as refused:
            return self._failed(f"{verb}: {refused}", refused.status, "bad_request")
        except BadRequest as error:
            return self._failed(f"{verb}: {error}", 400, "bad_request")
        except NotReady as error:
            return self._failed(f"{verb}: {error}", 503, "not_ready")
        except Exception as error:  # one bad call must not end the server
            log.exception("%s failed", verb)
            return self._failed(f"{verb}: internal error: {error!r}", 500, "error")
        self._requests.labels(verb, self._verb.outcome(result)).inc()
        self._seconds.observe(time.perf_counter() - begin)
        return _json(result)

    def _failed(self, text: str, status: int, outcome: str) -> web.Response:
        self._requests.labels(self._name, outcome).inc()
        failure = _FAILURES.get(self._name)
        return _json(failure(text)) if failure is not None else web.Response(status=status, text=text)


def create_app(
    handlers: ExtenderHandlers,
    metrics: ExtenderMetrics,
    admit: Callable[[], Awaitable[None]],
    not_ready: Callable[[], str | None],
    intake: BodyReader | None = None,
) -> Handler:
    """Return the handler of verbs, probes and metrics.

    ``admit`` raises ``NotReady`` if this replica may not act; ``not_ready`` returns why it has not listed the cluster,
    None if it has. ``intake`` reads the bodies.
    """

    async def admit_every_replica() -> None:
        if why := not_ready():
            raise NotReady(why)

    bodies = BodyReader(LARGEST_BODY) if intake is None else intake
    routes = monitoring_routes(metrics.registry, not_ready)
    for name, verb in _verbs(handlers).items():
        admitting = admit_every_replica if name in _OF_EVERY_REPLICA else admit
        routes[f"/{name}"] = "POST", _VerbEndpoint(name, verb, admitting, metrics, bodies).serve
    return routed(routes)


def _json(result: Any) -> web.Response:
    return web.Response(body=_encoder.encode(result), content_type="application/json")
