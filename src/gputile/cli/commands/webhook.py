"""Runs ``gputile webhook``, which the API server asks before it stores a pod."""

from dataclasses import dataclass
from typing import Annotated

from gputile.cli.options.common import Context, namespace, option, takes
from gputile.cli.options.configuration import read_configuration
from gputile.cli.options.services import FollowedConfig, LogFormatOption, ServiceKubeconfig, Verbose, access_to
from gputile.cli.running import run_service
from gputile.support.telemetry import LogFormat, set_up_logging


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """What the command line asks, in the order of the help."""

    installed_in: Annotated[
        str, option("NAMESPACE", "Where gputile is installed; its Service and Secret are there.", callback=namespace)
    ]
    service: Annotated[str, option("NAME", "The Service that the API server reaches it by.")]
    secret: Annotated[str, option("NAME", "The Secret with its certificate, which is made if missing.")]
    configuration: Annotated[str, option("NAME", "Name of both webhook configurations; their caBundle is kept.")]
    config: FollowedConfig = None
    host: Annotated[str, option("ADDRESS", "Address to listen on.")] = "0.0.0.0"  # noqa: S104
    port: Annotated[int, option("PORT", "Port to listen on; HTTPS.", min=1, max=65535)] = 9443
    health_port: Annotated[int, option("PORT", "Port of /healthz, /readyz and /metrics; HTTP.", min=1, max=65535)] = (
        8083
    )
    dns_name: Annotated[
        list[str] | None,
        option("NAME", "A further DNS name or address in the certificate; may be given several times."),
    ] = None
    kubeconfig: ServiceKubeconfig = None
    context: Context = None
    log_format: LogFormatOption = LogFormat.JSON
    verbose: Verbose = False


@takes(WebhookOptions)
def webhook(options: WebhookOptions) -> None:
    """Complete GPU pods, rewrite their old forms, and refuse what breaks a rule.

    Serves the certificate of its Secret, and makes one if there is none. Ends on SIGTERM, after the reviews that are
    still on their way.
    """
    from gputile.controlplane.webhook.server import WebhookSettings, serve

    read_configuration(options.config)
    access = access_to(options.kubeconfig, options.context)
    set_up_logging(options.log_format, options.verbose)
    settings = WebhookSettings(
        namespace=options.installed_in,
        service=options.service,
        secret=options.secret,
        configuration=options.configuration,
        host=options.host,
        port=options.port,
        health_port=options.health_port,
        names=tuple(options.dns_name or ()),
        config=options.config,
    )
    run_service(serve(access, settings))
