"""Answers the API server's admission reviews over HTTP.

Every GPU pod waits for two reviews, so their application is bare ASGI: Starlette's routing and its layers of middleware
took as long as judging a pod.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from gputile.api.admission import (
    API_VERSION,
    KIND,
    AdmissionRequest,
    AdmissionReview,
    encode_allowed,
    encode_refused,
)
from gputile.api.conversion import decode
from gputile.controlplane.webhook.metrics import WebhookMetrics
from gputile.core.admission.review import (
    AdmissionPolicy,
    UnreadableReview,
    Verdict,
    mutate,
    unreadable,
    validate,
)
from gputile.core.admission.verdict import encode_patch, message
from gputile.support.request_body import BodyReader, BodyRefused

log = logging.getLogger(__name__)

_REVIEW = msgspec.json.Decoder(AdmissionReview)
# The API server chooses the path by the namespace's label, so the webhook does not have to read namespaces.
UNSAFE_SUFFIX: Final = "/unsafe-access"

Judge = Callable[[AdmissionRequest, AdmissionPolicy], Verdict]


@dataclass(frozen=True, slots=True)
class _ReviewPath:
    """What answers one path; ``unsafe_access`` is whether pods of the namespace may reach GPUs past the ledger."""

    name: str
    judge: Judge
    unsafe_access: bool


class ReviewApp:
    """The ASGI application of the reviews. ``policy`` gives what is in force, with or without unsafe access."""

    def __init__(self, policy: Callable[[bool], AdmissionPolicy], metrics: WebhookMetrics, intake: BodyReader) -> None:
        self._policy = policy
        self._metrics = metrics
        self._intake = intake
        self._paths = {
            f"/{name}{suffix}": _ReviewPath(name, judge, bool(suffix))
            for name, judge in (("mutate", mutate), ("validate", validate))
            for suffix in ("", UNSAFE_SUFFIX)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        path = self._paths.get(scope["path"])
        if path is None:
            response: Response = PlainTextResponse("there is nothing here", 404)
        elif scope["method"] != "POST":
            response = PlainTextResponse("reviews are sent by POST", 405, {"Allow": "POST"})
        else:
            response = await self._review(path, Request(scope, receive))
        await response(scope, receive, send)

    async def _review(self, path: _ReviewPath, http: Request) -> Response:
        begin = time.perf_counter()
        try:
            request = _request(await self._intake.body(http))
        except BodyRefused as refused:
            self._count(path, "not_read")
            return PlainTextResponse(str(refused), refused.status)
        except ClientDisconnect:
            self._count(path, "not_read")
            return PlainTextResponse("", 400)
        except ValueError as error:
            self._count(path, "bad_request")
            return PlainTextResponse(f"this is no AdmissionReview: {str(error)[:200]}", 400)
        try:
            verdict = path.judge(request, self._policy(path.unsafe_access))
        except UnreadableReview as error:
            verdict = Verdict(refusals=(unreadable(error),))
        except Exception:  # the boundary: the API server learns that the review failed, and the log why
            log.exception("review failed", extra={"namespace": request.namespace, "pod": request.name})
            self._count(path, "error")
            return PlainTextResponse("internal error; see the webhook's log", 500)
        self._count(path, "refused" if verdict.refusals else "changed" if verdict.operations else "allowed")
        answer = _answer(request, verdict, self._metrics)
        self._metrics.seconds.labels(path.name).observe(time.perf_counter() - begin)
        return Response(answer, media_type="application/json")

    def _count(self, path: _ReviewPath, outcome: str) -> None:
        self._metrics.reviews.labels(path.name, outcome).inc()


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
