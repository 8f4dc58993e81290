"""Defines the sections of a kubeconfig that a connection needs (``client-go``'s clientcmd/api/v1)."""

from typing import Any

import msgspec


class ClientConfigCluster(msgspec.Struct, rename="kebab", kw_only=True):
    """Where an API server is, and whom to trust there. ``certificate_authority_data`` is PEM in base64."""

    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, Any]] | None = None


class ClientConfigUser(msgspec.Struct, rename="kebab", kw_only=True):
    """How to get in. The ``_data`` fields are PEM in base64; those that begin with ``as`` say as whom to act."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    as_: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str] | None] | None = None
    exec: dict[str, Any] | None = None
    auth_provider: dict[str, Any] | None = None


class ClientConfigContext(msgspec.Struct, kw_only=True):
    """A user at a cluster."""

    cluster: str
    user: str | None = None
    namespace: str | None = None
