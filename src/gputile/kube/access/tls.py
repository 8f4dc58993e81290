"""Builds TLS settings towards one API server: whom to trust, and which client certificate to show."""

import base64
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from gputile.api.units import MIB
from gputile.kube.access.client_config import ClientConfigCluster, ClientConfigUser
from gputile.support.files import read_bounded, read_whole

_MOST_BYTES: Final = 4 * MIB  # a bundle of all authorities of the web has 0.2 MiB


class ClusterTls:
    """Makes the TLS settings of one cluster; None throughout where the API server is reached by plain HTTP.

    Where a certificate or key cannot be used, a ValueError says which field of the kubeconfig has it.
    """

    def __init__(self, cluster: ClientConfigCluster) -> None:
        self._encrypted = cluster.server.startswith("https:")
        self._insecure = cluster.insecure_skip_tls_verify
        self.authority_data = cluster.certificate_authority_data or ""  # PEM in base64, as kubeconfigs hold it
        if not self.authority_data and cluster.certificate_authority:
            with _of("certificate-authority", cluster.certificate_authority):
                self.authority_data = base64.b64encode(
                    read_bounded(cluster.certificate_authority, _MOST_BYTES)
                ).decode()

    def of_user(self, user: ClientConfigUser) -> ssl.SSLContext | None:
        """Return the settings with the client certificate of ``user``, if it has one."""
        if user.client_certificate_data or user.client_key_data:
            certificate = _decoded(user.client_certificate_data, "client-certificate-data")
            with _of("client-certificate-data, client-key-data"):
                return self.with_pem(certificate, _decoded(user.client_key_data, "client-key-data"))
        if user.client_certificate:
            context = self._context()
            if context:
                with _of("client-certificate, client-key", user.client_certificate, user.client_key or ""):
                    for file in filter(None, (user.client_certificate, user.client_key)):
                        read_whole(Path(file), _MOST_BYTES)  # OpenSSL would read a device for ever
                    context.load_cert_chain(user.client_certificate, user.client_key, _no_pass_phrase)
            return context
        return self._context()

    def with_pem(self, certificate: str, key: str) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key in PEM, or without where they are empty.

        Raises:
            ssl.SSLError: they are no certificate and key that belong together.
        """
        context = self._context()
        if context and certificate:
            # ssl reads a certificate from files only
            with tempfile.TemporaryDirectory() as directory:
                files = Path(directory, "tls.crt"), Path(directory, "tls.key")
                for file, content in zip(files, (certificate, key), strict=True):
                    file.touch(mode=0o600)
                    file.write_text(content)
                context.load_cert_chain(*files, _no_pass_phrase)
        return context

    def _context(self) -> ssl.SSLContext | None:
        if not self._encrypted:
            return None
        with _of("certificate-authority"):
            authority = _decoded(self.authority_data, "certificate-authority-data")
            context = ssl.create_default_context(cadata=authority or None)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class _EncryptedKey(ValueError):
    """A private key that needs a pass phrase."""


def _no_pass_phrase() -> NoReturn:
    """Refuse a key that is encrypted; OpenSSL would ask the terminal for the pass phrase, and wait for ever."""
    raise _EncryptedKey("the key is protected by a pass phrase: give one without (openssl pkey -in KEY -out NEW)")


@contextmanager
def _of(fields: str, *files: str) -> Iterator[None]:
    """Say of which fields of a kubeconfig it is that a certificate, key or file cannot be used.

    Raises:
        ValueError: it cannot.
    """
    named = f"{fields} ({', '.join(filter(None, files))})" if any(files) else fields
    try:
        yield
    except ssl.SSLError as error:
        why = f": {error.reason}" if error.reason else ""
        raise ValueError(f"{named}: no PEM that can be used{why}") from error
    except _EncryptedKey as error:
        raise ValueError(f"{named}: {error}") from error
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror or error}") from error


def _decoded(data: str | None, field: str) -> str:
    # ssl takes ASCII; what is not is a comment beside the certificates, or no certificate
    unwrapped = "".join((data or "").split())
    try:
        text = base64.b64decode(unwrapped, validate=True).decode("ascii", errors="replace")
    except ValueError as error:
        raise ValueError(f"{field}: must be base64") from error
    return text.replace("\ufffd", "?")
