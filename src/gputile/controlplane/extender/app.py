"""The extender's HTTP application: it decodes requests, encodes answers, and answers every request."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gputile.api.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderPreemptionArgs,
    FilterResult,
)
from gputile.api.json_size import has_more_items
from gputile.api.misfit import MisfitError, decode
from gputile.controlplane.extender.handlers import BadRequest, ExtenderHandlers
from gputile.controlplane.extender.metrics import ExtenderMetrics
from gputile.controlplane.leader_election import NotReady
from gputile.controlplane.request_body import BodyReader, BodyRefused
from gputile.support.monitoring import monitoring_routes

log = logging.getLogger(__name__)

# kube-scheduler sends one pod and some thousand names, or the victims on a tenth of the nodes; a body beyond this is
# not from it. One of many tiny items would hold the loop for seconds.
LARGEST_BODY = 8 * 1024 * 1024
MOST_ITEMS = {"preempt": 262_144}
MOST_ITEMS_ELSE = 81_920

_args = msgspec.json.Decoder(ExtenderArgs)
_binding_args = msgspec.json.Decoder(ExtenderBindingArgs)
_preemption_args = msgspec.json.Decoder(ExtenderPreemptionArgs)
_encoder = msgspec.json.Encoder()

Answer = tuple[Any, str]
Handler = Callable[[bytes], Awaitable[Answer]]


def create_app(
    handlers: ExtenderHandlers,
    metrics: ExtenderMetrics,
    *,
    admit: Callable[[], Awaitable[None]],
    not_ready: Callable[[], str],
    intake: BodyReader | None = None,
) -> Starlette:
    """Return the ASGI application, which reads what it is asked by ``intake``.

    ``admit`` raises ``NotReady`` where this replica may not act. ``not_ready`` returns why it is not ready to be
    asked, "" where it is.
    """

    bodies = BodyReader(LARGEST_BODY) if intake is None else intake

    async def filter_(body: bytes) -> Answer:
        result = handlers.filter(decode(body, _args))
        return result, "fits" if result.node_names else "refused"

    async def prioritize(body: bytes) -> Answer:
        return handlers.prioritize(decode(body, _args)), "scored"

    async def prioritize_without_gpus(body: bytes) -> Answer:
        return handlers.prioritize_without_gpus(decode(body, _args)), "scored"

    async def bind(body: bytes) -> Answer:
        result = await handlers.bind(decode(body, _binding_args))
        return result, "failed" if result.error else "bound"

    async def preempt(body: bytes) -> Answer:
        return await handlers.preempt(decode(body, _preemption_args)), "answered"

    # How each verb says that it could not be answered; prioritize and preempt have no field for it.
    errors: dict[str, Callable[[str], Any]] = {
        "filter": lambda text: FilterResult(error=text),
        "bind": lambda text: ExtenderBindingResult(error=text),
    }

    def endpoint(verb: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        counter, seconds = metrics.requests, metrics.seconds.labels(verb)
        failure, most_items = errors.get(verb), MOST_ITEMS.get(verb, MOST_ITEMS_ELSE)

        def failed(text: str, status: int, outcome: str) -> Response:
            counter.labels(verb, outcome).inc()
            if failure is not None:
                return _json(failure(text))
            return PlainTextResponse(text, status)

        async def serve(request: Request) -> Response:
            begin = time.perf_counter()
            try:
                body = await bodies.body(request)
                if has_more_items(body, most_items):
                    raise BadRequest(f"the body has more than {most_items} items of JSON")
                await admit()
                result, outcome = await handler(body)
            except MisfitError as error:
                return failed(f"{verb}: the request is not what kube-scheduler sends: {error}", 400, "bad_request")
            except BodyRefused as refused:
                return failed(f"{verb}: {refused}", refused.status, "bad_request")
            except ClientDisconnect:
                return failed(f"{verb}: the client went away", 400, "bad_request")
            except BadRequest as error:
                return failed(f"{verb}: {error}", 400, "bad_request")
            except NotReady as error:
                return failed(f"{verb}: {error}", 503, "not_ready")
            except Exception as error:  # the boundary: one bad call must not take the others down
                log.exception("%s failed", verb)
                return failed(f"{verb}: internal error: {error!r}", 500, "error")
            counter.labels(verb, outcome).inc()
            seconds.observe(time.perf_counter() - begin)
            return _json(result)

        return serve

    verbs_served: dict[str, Handler] = {
        "filter": filter_,
        "prioritize": prioritize,
        "prioritize-without-gpus": prioritize_without_gpus,
        "bind": bind,
        "preempt": preempt,
    }
    return Starlette(
        routes=[
            *(Route(f"/{verb}", endpoint(verb, handler), methods=["POST"]) for verb, handler in verbs_served.items()),
            *monitoring_routes(metrics.registry, not_ready),
        ]
    )


def _json(result: Any) -> Response:
    return Response(_encoder.encode(result), media_type="application/json")
