"""Assembles and runs the webhook: configuration, certificates, two HTTP servers, shutdown."""

import asyncio
import gc
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from gputile.api.config.v1alpha1 import Configuration
from gputile.api.quantity import MIB
from gputile.controlplane.webhook.app import WebhookMetrics, review_app
from gputile.controlplane.webhook.certificates import CertificateKeeper
from gputile.core.admission.review import AdmissionPolicy
from gputile.core.devices.node_type import node_types_of
from gputile.kube.client import Connection
from gputile.kube.config import Access
from gputile.support.config_file import ConfigFile, read
from gputile.support.http_requests import BodyReader, monitoring_routes, routed
from gputile.support.http_server import ANY_ADDRESS, Server, ServerLimits, bound_ports
from gputile.support.telemetry import LoopLag

log = logging.getLogger(__name__)

# The API server accepts objects of up to 3 MiB, and an AdmissionReview contains at most an old and
# a new object. A pod with thousands of containers may exceed the limit after the API server has
# added defaults. Such a pod is refused.
LARGEST_BODY = 7 * MIB
ANSWER_SECONDS = 10
FOLLOW_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """The settings of a webhook process.

    After SIGTERM, the webhook answers reviews for ``drain_seconds``, because API servers may still
    send reviews.
    """

    namespace: str
    service: str
    secret: str
    configuration: str
    host: str = ANY_ADDRESS  # the API server connects from outside the pod
    port: int = 9443
    health_port: int = 8083
    names: tuple[str, ...] = ()  # names in the certificate besides the Service's name
    config: Path | None = None
    drain_seconds: float = 5.0


class Webhook:
    """One replica of the webhook."""

    def __init__(
        self, connection: Connection, configuration: ConfigFile, settings: WebhookSettings
    ) -> None:
        self.metrics = WebhookMetrics()
        self._lag = LoopLag("webhook")
        self.metrics.registry.register(self._lag.seconds)
        self.configuration = configuration
        self.draining = False
        self.certificates = CertificateKeeper(
            connection,
            namespace=settings.namespace,
            secret=settings.secret,
            configuration=settings.configuration,
            names=service_names(settings),
        )
        self._review = review_app(self.policy, self.metrics, BodyReader(LARGEST_BODY))
        self._health = routed(monitoring_routes(self.metrics.registry, self.not_ready))
        self._describe()

    async def app(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a review. While this replica drains, close the connection after the response.

        If the connection stayed open, the client might send a request just as the server closes the
        connection. The client would then get no response.
        """
        answer = await self._review(request)
        if self.draining:
            answer.force_close()
        return answer

    def policy(self, unsafe_access: bool) -> AdmissionPolicy:
        current = self.configuration.current
        admission = current.admission
        return AdmissionPolicy(
            current.unit_mib,
            admission.trusted_users,
            admission.gangs,
            unsafe_access,
            current.scheduler_name,
            current.gpu_time,
            node_types_of(current),
            current.features.claims,
            admission.isolation,
        )

    def not_ready(self) -> str | None:
        """Return why this replica is not ready for reviews, or None if it is ready."""
        return "it is shutting down" if self.draining else self.certificates.unusable()

    def _describe(self) -> None:
        gauge = self.metrics.registry.gauge
        certificates, configuration = self.certificates, self.configuration
        gauge(
            "gputile_webhook_ready",
            "1 while this replica is ready for reviews.",
            lambda: self.not_ready() is None,
        )
        gauge(
            "gputile_webhook_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires, Unix time; 0 without one.",
            lambda: certificates.current.expires.timestamp() if certificates.current else 0.0,
        )
        gauge(
            "gputile_webhook_certificate_managed",
            "1 if the certificate can be renewed. At 0, it is served until it expires.",
            lambda: certificates.problem is None,
        )
        gauge(
            "gputile_webhook_configuration_valid",
            "1 if the configuration file is valid and in force.",
            lambda: configuration.problem is None,
        )
        gauge(
            "gputile_webhook_memory_unit_mib",
            "The memory unit that new pods are annotated with, MiB.",
            lambda: configuration.current.unit_mib,
        )

    async def run(self, settings: WebhookSettings) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises:
            PortError: a port cannot be opened.
        """
        limits = ServerLimits(answer_seconds=ANSWER_SECONDS)
        health = Server(self._health, "--health-port", settings.host, settings.health_port, limits)
        reviews = Server(self.app, "--port", settings.host, settings.port, limits)
        reviews.use_tls(self.certificates.context)
        with bound_ports(health, reviews):
            await self._answer(health, reviews, settings.drain_seconds)

    async def _answer(self, health: Server, reviews: Server, drain_seconds: float) -> None:
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.set)
        async with asyncio.TaskGroup() as group:
            work = (
                self.configuration.run(FOLLOW_EVERY_S),
                self.certificates.run(),
                self._lag.run(),
            )
            background = [group.create_task(each) for each in work]
            health_served = group.create_task(health.answer())
            ended = group.create_task(ending.wait())
            served_once = group.create_task(self.certificates.served.wait())
            await asyncio.wait([ended, served_once], return_when=asyncio.FIRST_COMPLETED)
            if not ending.is_set():
                # A garbage collection of the loaded modules would delay a review by tens of ms.
                gc.collect()
                gc.freeze()
                served = group.create_task(reviews.answer())
                await ending.wait()
                self.draining = True
                await asyncio.sleep(drain_seconds)
                reviews.stop()
                await served
            for task in (*background, served_once):
                task.cancel()
            health.stop()
            await health_served


async def serve(access: Access, settings: WebhookSettings) -> None:
    """Run the webhook until SIGTERM or SIGINT.

    Raises:
        ConfigurationError: the configuration file cannot be used.
        PortError: a port cannot be opened.
    """
    configuration = ConfigFile(
        settings.config, read(settings.config) if settings.config else Configuration()
    )
    async with Connection(access) as connection:
        webhook = Webhook(connection, configuration, settings)
        log.info("webhook starts", extra={"address": f"{settings.host}:{settings.port}"})
        await webhook.run(settings)
    log.info("webhook stops")


def service_names(settings: WebhookSettings) -> tuple[str, ...]:
    """Return the names by which the API server reaches the webhook, for its certificate."""
    base = f"{settings.service}.{settings.namespace}"
    return (f"{base}.svc", *settings.names)
