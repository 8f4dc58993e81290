"""The reviews of the webhook over HTTP.

Every GPU pod waits for two reviews, so their application is bare ASGI: Starlette's routing and its layers of middleware
took as long as judging a pod.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gputile.api.admission import (
    API_VERSION,
    KIND,
    AdmissionRequest,
    AdmissionReview,
    encode_allowed,
    encode_refused,
)
from gputile.api.misfit import decode
from gputile.controlplane.request_body import BodyReader, BodyRefused
from gputile.controlplane.webhook.metrics import WebhookMetrics
from gputile.core.admission.json_patch import encode_patch
from gputile.core.admission.refusal import message
from gputile.core.admission.review import (
    AdmissionPolicy,
    UnreadableReview,
    Verdict,
    mutate,
    unreadable,
    validate,
)

log = logging.getLogger(__name__)

_REVIEW = msgspec.json.Decoder(AdmissionReview)
# The API server chooses between the two by the namespace's label, so that nobody has to look it up.
UNSAFE_SUFFIX: Final = "/unsafe-access"

Judge = Callable[[AdmissionRequest, AdmissionPolicy], Verdict]


def create_app(policy: Callable[[bool], AdmissionPolicy], metrics: WebhookMetrics, intake: BodyReader) -> ASGIApp:
    """Return the ASGI application of the reviews. ``policy`` gives what is in force, with or without unsafe access."""

    def endpoint(webhook: str, judge: Judge, unsafe: bool) -> Callable[[Request], Awaitable[Response]]:
        seconds = metrics.seconds.labels(webhook)

        def counted(outcome: str) -> None:
            metrics.reviews.labels(webhook, outcome).inc()

        async def review(http: Request) -> Response:
            begin = time.perf_counter()
            try:
                request = _request(await intake.body(http))
            except BodyRefused as refused:
                counted("not_read")
                return PlainTextResponse(str(refused), refused.status)
            except ClientDisconnect:
                counted("not_read")
                return PlainTextResponse("", 400)
            except ValueError as error:
                counted("bad_request")
                return PlainTextResponse(f"this is no AdmissionReview: {str(error)[:200]}", 400)
            try:
                verdict = judge(request, policy(unsafe))
            except UnreadableReview as error:
                verdict = Verdict(refusals=(unreadable(error),))
            except Exception:  # the boundary: the API server is told that it failed, and nothing of how
                log.exception("review failed", extra={"namespace": request.namespace, "pod": request.name})
                counted("error")
                return PlainTextResponse("internal error; see the webhook's log", 500)
            counted("refused" if verdict.refusals else "changed" if verdict.operations else "allowed")
            answer = _answer(request, verdict, metrics)
            seconds.observe(time.perf_counter() - begin)
            return Response(answer, media_type="application/json")

        return review

    judges: dict[str, Judge] = {"mutate": mutate, "validate": validate}
    endpoints = {
        f"/{name}{suffix}": endpoint(name, judge, bool(suffix))
        for name, judge in judges.items()
        for suffix in ("", UNSAFE_SUFFIX)
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = endpoints.get(scope["path"])
        if found is None:
            response: Response = PlainTextResponse("there is nothing here", 404)
        elif scope["method"] != "POST":
            response = PlainTextResponse("reviews are sent by POST", 405, {"Allow": "POST"})
        else:
            response = await found(Request(scope, receive))
        await response(scope, receive, send)

    return app


def _request(body: bytes) -> AdmissionRequest:
    """Return what is asked.

    Raises:
        ValueError: it is not a question of the version that is answered here.
    """
    review = decode(body, _REVIEW)
    if review.api_version != API_VERSION or review.kind != KIND:
        raise ValueError(f"only {API_VERSION} {KIND} is answered")
    if review.request is None:
        raise ValueError("it has no request")
    return review.request


def _answer(request: AdmissionRequest, verdict: Verdict, metrics: WebhookMetrics) -> bytes:
    if not verdict.refusals:
        patch = encode_patch(verdict.operations) if verdict.operations else b""
        return encode_allowed(request.uid, patch, verdict.warnings)
    for refusal in verdict.refusals:
        metrics.refusals.labels(str(refusal.rule)).inc()
    return encode_refused(request.uid, message(verdict.refusals), verdict.warnings)
