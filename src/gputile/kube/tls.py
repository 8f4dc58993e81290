"""TLS settings towards one API server: whom to trust, and which client certificate to show."""

import base64
import ssl
import tempfile
from pathlib import Path

from gputile.kube.client_config import ClientConfigCluster, ClientConfigUser


class ClusterTls:
    """Makes the TLS settings of one cluster; None throughout where the API server is reached by plain HTTP."""

    def __init__(self, cluster: ClientConfigCluster) -> None:
        self._encrypted = cluster.server.startswith("https:")
        self._insecure = cluster.insecure_skip_tls_verify
        self.authority_data = cluster.certificate_authority_data or ""  # PEM in base64, as kubeconfigs hold it
        if not self.authority_data and cluster.certificate_authority:
            self.authority_data = base64.b64encode(Path(cluster.certificate_authority).read_bytes()).decode()

    def of_user(self, user: ClientConfigUser) -> ssl.SSLContext | None:
        """Return the settings with the client certificate of ``user``, if it has one."""
        if user.client_certificate_data or user.client_key_data:
            return self.with_pem(_decoded(user.client_certificate_data), _decoded(user.client_key_data))
        if user.client_certificate:
            context = self._context()
            if context:
                context.load_cert_chain(user.client_certificate, user.client_key)
            return context
        return self._context()

    def with_pem(self, certificate: str, key: str) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key in PEM, or without where they are empty."""
        context = self._context()
        if context and certificate:
            # ssl reads a certificate from files only
            with tempfile.TemporaryDirectory() as directory:
                files = Path(directory, "tls.crt"), Path(directory, "tls.key")
                for file, content in zip(files, (certificate, key), strict=True):
                    file.touch(mode=0o600)
                    file.write_text(content)
                context.load_cert_chain(*files)
        return context

    def _context(self) -> ssl.SSLContext | None:
        if not self._encrypted:
            return None
        context = ssl.create_default_context(cadata=_decoded(self.authority_data) or None)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _decoded(data: str | None) -> str:
    # ssl takes ASCII; what is not is a comment beside the certificates, or no certificate
    unwrapped = "".join((data or "").split())
    return base64.b64decode(unwrapped, validate=True).decode("ascii", errors="replace").replace("\ufffd", "?")
