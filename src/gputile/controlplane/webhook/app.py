"""Answers the API server's admission reviews over HTTP.

The API server stores a GPU pod only after a mutating and a validating review.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import Counter

from gputile.api.conversion import decode
from gputile.api.webhooks import (
    API_VERSION,
    KIND,
    AdmissionRequest,
    AdmissionReview,
    encode_allowed,
    encode_refused,
)
from gputile.core.admission.legacy_forms import encode_patch
from gputile.core.admission.review import (
    AdmissionPolicy,
    UnreadableReview,
    Verdict,
    message,
    mutate,
    unreadable,
    validate,
)
from gputile.support.http_requests import BodyReader, BodyRefused, routed
from gputile.support.http_server import Handler
from gputile.support.telemetry import MetricsRegistry

log = logging.getLogger(__name__)

_REVIEW = msgspec.json.Decoder(AdmissionReview)
# The API server selects this path by the namespace's label, so the webhook needs no permission to
# read namespaces.
UNSAFE_SUFFIX: Final = "/unsafe-access"

Judge = Callable[[AdmissionRequest, AdmissionPolicy], Verdict]


class WebhookMetrics:
    """The counters of one replica."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.reviews = Counter(
            "gputile_webhook_reviews_total",
            "Reviews by webhook and outcome.",
            ["webhook", "outcome"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "gputile_webhook_refusals_total",
            "Broken rules of refused pods, by rule.",
            ["rule"],
            registry=self.registry,
        )


@dataclass(frozen=True, slots=True)
class _ReviewPath:
    """Answers the reviews of one path."""

    name: str
    judge: Judge
    unsafe_access: bool  # whether pods of the namespace may use GPUs without a booking
    policy: Callable[[bool], AdmissionPolicy]
    metrics: WebhookMetrics
    intake: BodyReader

    async def review(self, http: web.BaseRequest) -> web.Response:
        try:
            request = _request(await self.intake.body(http))
        except BodyRefused as refused:
            self._count("not_read")
            return web.Response(status=refused.status, text=str(refused))
        except ValueError as error:
            self._count("bad_request")
            return web.Response(
                status=400, text=f"the body is not an AdmissionReview: {str(error)[:200]}"
            )
        try:
            verdict = self.judge(request, self.policy(self.unsafe_access))
        except UnreadableReview as error:
            verdict = Verdict(refusals=(unreadable(error),))
        except Exception:  # The API server gets a 500. Only the log contains the cause.
            log.exception(
                "review failed", extra={"namespace": request.namespace, "pod": request.name}
            )
            self._count("error")
            return web.Response(status=500, text="internal error; see the webhook's log")
        self._count(
            "refused" if verdict.refusals else "changed" if verdict.operations else "allowed"
        )
        return web.Response(
            body=_answer(request, verdict, self.metrics), content_type="application/json"
        )

    def _count(self, outcome: str) -> None:
        self.metrics.reviews.labels(self.name, outcome).inc()


def review_app(
    policy: Callable[[bool], AdmissionPolicy], metrics: WebhookMetrics, intake: BodyReader
) -> Handler:
    """Return the handler of reviews.

    ``policy`` returns the policy in force. Its argument states whether pods of the namespace may
    use GPUs without a booking.
    """
    return routed(
        {
            f"/{name}{suffix}": (
                "POST",
                _ReviewPath(name, judge, bool(suffix), policy, metrics, intake).review,
            )
            for name, judge in (("mutate", mutate), ("validate", validate))
            for suffix in ("", UNSAFE_SUFFIX)
        }
    )


def _request(body: bytes) -> AdmissionRequest:
    """Decode the request of an AdmissionReview.

    Raises:
        ValueError: ``body`` is not an AdmissionReview of the supported version.
    """
    review = decode(body, _REVIEW)
    if review.api_version != API_VERSION or review.kind != KIND:
        raise ValueError(f"apiVersion and kind must be {API_VERSION} and {KIND}")
    if review.request is None:
        raise ValueError("the field request is missing")
    return review.request


def _answer(request: AdmissionRequest, verdict: Verdict, metrics: WebhookMetrics) -> bytes:
    if not verdict.refusals:
        patch = encode_patch(verdict.operations) if verdict.operations else b""
        return encode_allowed(request.uid, patch, verdict.warnings)
    for refusal in verdict.refusals:
        metrics.refusals.labels(str(refusal.rule)).inc()
    return encode_refused(request.uid, message(verdict.refusals), verdict.warnings)
