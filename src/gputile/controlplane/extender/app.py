"""Serves the extender over HTTP: decodes requests, calls the handlers, and encodes responses."""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import Counter, Histogram

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
from gputile.support.http_requests import BodyReader, BodyRefused, monitoring_routes, routed
from gputile.support.http_server import Handler

log = logging.getLogger(__name__)

# kube-scheduler sends one pod with some thousand node names, or the victims on a tenth of the
# nodes. Larger bodies are not from kube-scheduler, and decoding very many items would block the
# event loop for seconds.
LARGEST_BODY = 8 * MIB
MOST_ITEMS = {"preempt": 262_144}
MOST_ITEMS_ELSE = 81_920

_encoder = msgspec.json.Encoder()

# The error responses of verbs. The responses of prioritize and preempt have no field for an error.
_FAILURES: dict[str, Callable[[str], Any]] = {
    "filter": lambda text: FilterResult(error=text),
    "bind": lambda text: ExtenderBindingResult(error=text),
}


@dataclass(frozen=True, slots=True)
class _Verb:
    """Serves one verb over HTTP.

    ``serve`` reads the body, calls ``admit`` and then ``answer``, and counts the outcome. ``admit``
    raises ``NotReady`` if this replica may not act. ``outcome`` returns the name of a result in the
    metrics.
    """

    name: str
    decoder: msgspec.json.Decoder[Any]
    answer: Callable[[Any], Any]
    outcome: Callable[[Any], str]
    admit: Callable[[], Awaitable[None]]
    requests: Counter
    seconds: Histogram
    bodies: BodyReader

    async def serve(self, request: web.BaseRequest) -> web.Response:
        begin, most_items = time.perf_counter(), MOST_ITEMS.get(self.name, MOST_ITEMS_ELSE)
        try:
            body = await self.bodies.body(request)
            if has_more_items(body, most_items):
                raise BadRequest(f"the body has more than {most_items} items of JSON")
            await self.admit()
            result = self.answer(decode(body, self.decoder))
            if isawaitable(result):
                result = await result
        except ConversionError as error:
            return self._failed(
                f"the request is not what kube-scheduler sends: {error}", 400, "bad_request"
            )
        except BodyRefused as refused:
            return self._failed(str(refused), refused.status, "bad_request")
        except BadRequest as error:
            return self._failed(str(error), 400, "bad_request")
        except NotReady as error:
            return self._failed(str(error), 503, "not_ready")
        except Exception as error:  # A call that fails must not end the server.
            log.exception("%s failed", self.name)
            return self._failed(f"internal error: {error!r}", 500, "error")
        self.requests.labels(self.name, self.outcome(result)).inc()
        self.seconds.observe(time.perf_counter() - begin)
        return _json(result)

    def _failed(self, why: str, status: int, outcome: str) -> web.Response:
        self.requests.labels(self.name, outcome).inc()
        failure, text = _FAILURES.get(self.name), f"{self.name}: {why}"
        return (
            _json(failure(text)) if failure is not None else web.Response(status=status, text=text)
        )


def create_app(
    handlers: ExtenderHandlers,
    metrics: ExtenderMetrics,
    admit: Callable[[], Awaitable[None]],
    not_ready: Callable[[], str | None],
    intake: BodyReader | None = None,
) -> Handler:
    """Return the handler of verbs, probes and metrics.

    ``admit`` raises ``NotReady`` if this replica may not act. ``not_ready`` returns why this
    replica has not listed the cluster yet, or None if it has listed the cluster. ``intake`` reads
    the bodies of requests.
    """

    async def admit_every_replica() -> None:
        if why := not_ready():
            raise NotReady(why)

    args = msgspec.json.Decoder(ExtenderArgs)
    bind_args = msgspec.json.Decoder(ExtenderBindingArgs)
    preempt_args = msgspec.json.Decoder(ExtenderPreemptionArgs)
    verbs: list[
        tuple[str, msgspec.json.Decoder[Any], Callable[[Any], Any], Callable[[Any], str]]
    ] = [
        (
            "filter",
            args,
            handlers.filter,
            lambda result: "fits" if result.node_names else "refused",
        ),
        ("prioritize", args, handlers.prioritize, lambda _: "scored"),
        ("prioritize-without-gpus", args, handlers.prioritize_without_gpus, lambda _: "scored"),
        ("prioritize-claims", args, handlers.prioritize_claims, lambda _: "scored"),
        ("bind", bind_args, handlers.bind, lambda result: "failed" if result.error else "bound"),
        ("preempt", preempt_args, handlers.preempt, lambda _: "answered"),
    ]
    bodies = BodyReader(LARGEST_BODY) if intake is None else intake
    routes = monitoring_routes(metrics.registry, not_ready)
    for name, decoder, answer, outcome in verbs:
        # Every replica may answer prioritize-claims, which books nothing.
        admitting = admit_every_replica if name == "prioritize-claims" else admit
        seconds = metrics.seconds.labels(name)
        verb = _Verb(name, decoder, answer, outcome, admitting, metrics.requests, seconds, bodies)
        routes[f"/{name}"] = "POST", verb.serve
    return routed(routes)


def _json(result: Any) -> web.Response:
    return web.Response(body=_encoder.encode(result), content_type="application/json")
