"""Builds TLS settings towards one API server: whom to trust, and which client certificate to show.

Where a certificate or key cannot be used, a ValueError says which field of the kubeconfig has it.
"""

import base64
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from gputile.api.quantity import MIB
from gputile.support.files import read_bounded

_MOST_BYTES: Final = 4 * MIB  # a bundle of all authorities of the web has 0.2 MiB


class ClusterTls:
    """Makes the TLS settings of one cluster; None throughout where the API server is reached by plain HTTP.

    ``authority`` is a file, ``authority_data`` its content in base64, which counts where both are there.
    """

    def __init__(self, server: str, authority: str | None, authority_data: str | None, *, insecure: bool) -> None:
        self._encrypted = server.startswith("https:")
        self._insecure = insecure
        self.authority_data = authority_data or ""
        if not self.authority_data and authority:
            with _named("certificate-authority", authority):
                self.authority_data = base64.b64encode(read_bounded(authority, _MOST_BYTES)).decode()

    def with_files(self, certificate: str, key: str | None) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key from files; both may be in one."""
        with _named("client-certificate, client-key", certificate, key or ""):
            pem, key_pem = (_ascii(read_bounded(file, _MOST_BYTES)) for file in (certificate, key or certificate))
            return self.with_pem(pem, key_pem)

    def with_data(self, certificate: str | None, key: str | None) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key, which are in base64."""
        certificate_pem = _decoded(certificate, "client-certificate-data")
        with _named("client-certificate-data, client-key-data"):
            return self.with_pem(certificate_pem, _decoded(key, "client-key-data"))

    def with_pem(self, certificate: str, key: str) -> ssl.SSLContext | None:
        """Return the settings with a client certificate and its key in PEM, or without where they are empty.

        Raises:
            ssl.SSLError: they are no certificate and key that belong together.
        """
        context = self.without_certificate()
        if context and certificate:
            # ssl reads a certificate from files only
            with tempfile.TemporaryDirectory() as directory:
                files = Path(directory, "tls.crt"), Path(directory, "tls.key")
                for file, content in zip(files, (certificate, key), strict=True):
                    file.touch(mode=0o600)
                    file.write_text(content)
                context.load_cert_chain(*files, _no_pass_phrase)
        return context

    def without_certificate(self) -> ssl.SSLContext | None:
        """Return the settings of a client that shows no certificate."""
        if not self._encrypted:
            return None
        with _named("certificate-authority"):
            authority = _decoded(self.authority_data, "certificate-authority-data")
            context = ssl.create_default_context(cadata=authority or None)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _no_pass_phrase() -> NoReturn:
    """Refuse a key that is encrypted; OpenSSL would ask the terminal for the pass phrase, and wait for ever."""
    raise ValueError("the key is protected by a pass phrase: give one without (openssl pkey -in KEY -out NEW)")


@contextmanager
def _named(fields: str, *files: str) -> Iterator[None]:
    """Raise a ValueError that names the fields of the kubeconfig whose certificate, key or file cannot be used."""
    named = f"{fields} ({', '.join(filter(None, files))})" if any(files) else fields
    try:
        yield
    except ssl.SSLError as error:
        why = f": {error.reason}" if error.reason else ""
        raise ValueError(f"{named}: no PEM that can be used{why}") from error
    except ValueError as error:
        raise ValueError(f"{named}: {error}") from error
    except OSError as error:
        raise ValueError(f"{named}: {error.strerror or error}") from error


def _decoded(data: str | None, field: str) -> str:
    try:
        return _ascii(base64.b64decode("".join((data or "").split()), validate=True))
    except ValueError as error:
        raise ValueError(f"{field}: must be base64") from error


def _ascii(pem: bytes) -> str:
    # ssl takes ASCII; what is not is a comment beside the certificates, or no certificate
    return pem.decode("ascii", errors="replace").replace("\ufffd", "?")
