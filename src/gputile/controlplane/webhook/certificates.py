"""Makes the webhook's certificates, and decides when they change. No I/O; the time is passed in.

One generation is a serving certificate and the authority that signed it, made together. The authority's key signs once
and is not stored, so a reader of the Secret cannot issue another certificate. A new generation is announced before it
serves: the API server is told to trust its authority ``OVERLAP`` ahead, and trusts the one before it until that has
expired.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
OVERLAP: Final = timedelta(hours=1)  # between trusting an authority and serving what it signed
LAST_MOMENT: Final = timedelta(minutes=10)  # a certificate that ends sooner is replaced without waiting
SKEW: Final = timedelta(hours=1)  # how far the clocks of a cluster may differ
_UNREADABLE: Final = (
    KeyError,
    ValueError,
    TypeError,
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)


class MaterialError(ValueError):
    """The stored data are not certificates of this kind."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A serving certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def begins(self) -> datetime:
        """From when on clients accept the certificate."""
        return self.parsed().not_valid_before_utc


@dataclass(frozen=True, slots=True)
class Material:
    """All that is stored. ``authorities`` (PEM) are to be trusted; ``following`` is announced and not served yet."""

    current: Pair
    authorities: tuple[bytes, ...]
    following: Pair | None = None

    @property
    def bundle(self) -> bytes:
        """What the API server trusts, PEM."""
        return b"".join(self.authorities)

    @property
    def expires(self) -> datetime:
        """When the serving certificate ends."""
        return self.current.parsed().not_valid_after_utc


def next_material(stored: Material | None, names: Sequence[str], now: datetime) -> Material:
    """Return what should be stored now: ``stored`` itself where nothing is due.

    What is not valid yet was made while a clock was ahead, and no client accepts it before its time; it is made anew.
    """
    if stored is None:
        return _fresh(names, now, ())
    valid = tuple(pem for pem in stored.authorities if _ends(pem) > now)
    if not _serves(stored.current, names, now):
        return _fresh(names, now, valid)
    following = stored.following
    if following is not None and not (_serves(following, names, now) and _end(following) > now):
        following = None
    material = replace(stored, authorities=valid, following=following)
    left = _end(stored.current) - now
    if following is None:
        if left < LAST_MOMENT:
            return _fresh(names, now, valid)
        if left < RENEW_BEFORE:
            authority, pair = _issue(names, now)
            return replace(material, authorities=(authority, *valid), following=pair)
    elif now >= _issued(following) + OVERLAP or left < LAST_MOMENT:
        return Material(following, valid)
    return material


def encode(material: Material) -> dict[str, bytes]:
    following = material.following
    return {
        "tls.crt": material.current.certificate,
        "tls.key": material.current.key,
        "ca.crt": material.bundle,
        "next.crt": following.certificate if following else b"",
        "next.key": following.key if following else b"",
    }


def decode(data: dict[str, bytes]) -> Material:
    """Return what the data of a Secret holds.

    Raises:
        MaterialError: something is missing, no certificate, names no server, or does not belong together.
    """
    try:
        authorities = x509.load_pem_x509_certificates(data["ca.crt"])
        current = _pair(data["tls.crt"], data["tls.key"], authorities)
        following = _pair(data["next.crt"], data["next.key"], authorities) if data.get("next.crt") else None
    except _UNREADABLE as error:
        raise MaterialError(f"{type(error).__name__}: {error}") from error
    pems = tuple(each.public_bytes(serialization.Encoding.PEM) for each in authorities)
    return Material(current, pems, following)


def _pair(certificate: bytes, key: bytes, authorities: Iterable[x509.Certificate]) -> Pair:
    parsed = x509.load_pem_x509_certificate(certificate)
    _names_of(parsed)
    private = serialization.load_pem_private_key(key, password=None)
    if private.public_key() != parsed.public_key():
        raise MaterialError("the key is not the certificate's")
    for authority in authorities:
        if authority.subject == parsed.issuer:
            parsed.verify_directly_issued_by(authority)
            return Pair(certificate, key)
    raise MaterialError("none of the authorities has signed the certificate")


def _fresh(names: Sequence[str], now: datetime, trusted: tuple[bytes, ...]) -> Material:
    authority, pair = _issue(names, now)
    return Material(pair, (authority, *trusted))


def _serves(pair: Pair, names: Sequence[str], now: datetime) -> bool:
    return pair.begins <= now and _names_of(pair.parsed()) >= set(names)


def _names_of(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(value) for kind in (x509.DNSName, x509.IPAddress) for value in found.get_values_for_type(kind)}


def _end(pair: Pair) -> datetime:
    return pair.parsed().not_valid_after_utc


def _ends(pem: bytes) -> datetime:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def _issued(pair: Pair) -> datetime:
    return pair.begins + SKEW


def _issue(names: Sequence[str], now: datetime) -> tuple[bytes, Pair]:
    serial = x509.random_serial_number()
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gputile-webhook-ca {serial:040x}"[:64])])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gputile-webhook")])
    signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _builder(issuer, issuer, signer.public_key(), now).serial_number(serial)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(False, False, False, False, False, True, False, False, False)
    identifier = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    signed = authority.add_extension(usage, critical=True).add_extension(identifier, critical=False)
    serving = _builder(subject, issuer, key.public_key(), now).serial_number(x509.random_serial_number())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([_general_name(name) for name in names]), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    ):
        serving = serving.add_extension(extension, critical=critical)
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return (
        signed.sign(signer, hashes.SHA256()).public_bytes(pem),
        Pair(serving.sign(signer, hashes.SHA256()).public_bytes(pem), key.private_bytes(pem, form, plain)),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    return builder.not_valid_before(now - SKEW).not_valid_after(now + LIFETIME)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
