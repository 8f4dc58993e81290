"""Words for people why a connection to an API server failed."""

import os
import ssl
from collections.abc import Mapping
from typing import Final

_TLS: Final[Mapping[str, str]] = {
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS; a server of plain HTTP has an http:// address",
    "HTTP_REQUEST": "what answers there speaks no TLS; a server of plain HTTP has an http:// address",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants a client certificate, and the kubeconfig's user has none",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not take the client certificate of the kubeconfig's user",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who signed the client certificate of the kubeconfig's user",
    "UNEXPECTED_EOF_WHILE_READING": "it ended the connection while TLS began",
}


def reason_of(error: OSError) -> str:
    """Return why a connection did not come about, or broke."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message or "it cannot be verified"
        remedy = "certificate-authority of the kubeconfig says whom to trust"
        return f"its certificate is not trusted: {said.rstrip('.')}; {remedy}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _TLS.get(reason, f"TLS failed: {reason.replace('_', ' ').lower()}" if reason else "TLS failed")
    number = error.errno or 0  # a name that cannot be resolved has a negative one; asyncio says "Connect call failed"
    return os.strerror(number) if number > 0 else error.strerror or str(error) or type(error).__name__
