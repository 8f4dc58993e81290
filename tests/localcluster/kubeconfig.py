"""Kubeconfig files, with everything embedded: one file is all that a client needs."""

import base64
from pathlib import Path
from typing import Any

import yaml

from tests.localcluster.certificates import KeyPair

CLUSTER = "gputile-test"


def write_kubeconfig(path: Path, url: str, authority: Path, user: str, identity: KeyPair) -> Path:
    """Write the kubeconfig of one user at ``path`` and return it."""
    client = {"client-certificate-data": _base64(identity.certificate), "client-key-data": _base64(identity.key)}
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CLUSTER, "cluster": {"server": url, "certificate-authority-data": _base64(authority)}}],
        "users": [{"name": user, "user": client}],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": user}}],
        "current-context": CLUSTER,
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
