"""The certificate that the page serves with, from the files of a Secret; a new one is taken up without a restart."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 60.0
_FILES: Final = ("tls.crt", "tls.key")  # as a Secret of the type kubernetes.io/tls names them


class CertificateError(Exception):
    """The files do not have a certificate and its key."""


class ServedCertificate:
    """The certificate in a directory; ``context`` serves it."""

    def __init__(self, directory: Path) -> None:
        """Read the certificate.

        Raises:
            CertificateError: it cannot be read.
        """
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._files = directory / _FILES[0], directory / _FILES[1]
        self._served = self._content()
        self._load()

    async def run(self) -> None:
        """Take up what the files have, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Take up what the files have now; the old certificate serves on where that cannot be read."""
        try:
            content = self._content()
            if content != self._served:
                self._load()
                self._served = content
        except CertificateError as error:
            log.warning("%s; the certificate that was read before serves on", error)

    def _content(self) -> list[bytes]:
        try:
            return [file.read_bytes() for file in self._files]
        except OSError as error:
            raise CertificateError(f"{error.filename}: {error.strerror}") from error

    def _load(self) -> None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._files)  # what fails half-way harms nobody
            self.context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(f"{self._files[0]}: no certificate with its key: {error}") from error
