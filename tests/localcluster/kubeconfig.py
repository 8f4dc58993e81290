"""Who may speak to the API server: client certificates, and kubeconfig files with everything embedded."""

import base64
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.localcluster.certificates import Authority, KeyPair

CLUSTER = "gputile-test"
ADMIN_GROUPS = ("system:masters",)


class Users:
    """Users of the API server at ``url``, each made when first asked for; may be used from several threads."""

    def __init__(self, authority: Authority, url: str) -> None:
        self._authority = authority
        self._url = url
        self._identities: dict[tuple[str, tuple[str, ...]], KeyPair] = {}
        self._lock = threading.Lock()

    def identity(self, user: str, groups: Sequence[str] | None = None) -> KeyPair:
        """Return a client certificate of ``user``; ``admin`` may do everything unless groups are given."""
        chosen = tuple(groups) if groups is not None else ADMIN_GROUPS if user == "admin" else ()
        with self._lock:
            if (user, chosen) not in self._identities:
                file_name = f"{len(self._identities)}-" + re.sub(r"[^\w.-]", "-", user)
                self._identities[user, chosen] = self._authority.client(file_name, user, chosen)
            return self._identities[user, chosen]

    def kubeconfig(self, user: str, groups: Sequence[str] | None = None) -> Path:
        """Return the path of a kubeconfig of ``user``, which has all that a client needs."""
        identity = self.identity(user, groups)
        path = identity.certificate.with_suffix(".kubeconfig")
        with self._lock:
            if not path.exists():
                write_kubeconfig(path, self._url, self._authority.certificate, user, identity)
        return path


def write_kubeconfig(path: Path, url: str, authority: Path, user: str, identity: KeyPair) -> None:
    """Write the kubeconfig of one user at ``path``."""
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


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
