"""Certificates issue and renew themselves, and there is no moment at which a served one is not trusted."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from gputile.controlplane.webhook.certificates import (
    LIFETIME,
    OVERLAP,
    RENEW_BEFORE,
    MaterialError,
    Pair,
    decode,
    encode,
    next_material,
)
from tests.conftest import examples

NAMES = ("gputile-webhook.gputile.svc", "127.0.0.1")
START = datetime(2026, 1, 1, tzinfo=UTC)


def is_trusted(pair: Pair, bundle: bytes, now: datetime, name: str = NAMES[0]) -> bool:
    """Judge a serving certificate by the library's own path validation, as the API server's does by Go's."""
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName(name))
    try:
        verifier.verify(pair.parsed(), [])
    except x509.verification.VerificationError:
        return False
    return True


def test_the_first_one_is_trusted_for_its_names_and_no_others() -> None:
    material = next_material(None, NAMES, START)
    assert is_trusted(material.current, material.bundle, START)
    assert not is_trusted(material.current, material.bundle, START, "other.gputile.svc")
    assert not is_trusted(material.current, material.bundle, START + LIFETIME + timedelta(seconds=1))
    found = material.current.parsed().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in found.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_the_authority_s_key_is_kept_nowhere() -> None:
    """Who reads the Secret can serve as the webhook, but not issue a certificate for anything else."""
    data = encode(next_material(None, NAMES, START))
    assert sorted(name for name, value in data.items() if b"PRIVATE" in value) == ["tls.key"]
    (authority,) = x509.load_pem_x509_certificates(data["ca.crt"])
    assert authority.public_key() != x509.load_pem_x509_certificate(data["tls.crt"]).public_key()


def test_a_renewal_is_announced_first_and_served_after_the_overlap() -> None:
    first = next_material(None, NAMES, START)
    assert next_material(first, NAMES, START + LIFETIME - RENEW_BEFORE - timedelta(minutes=1)) == first
    begin = START + LIFETIME - RENEW_BEFORE + timedelta(minutes=1)
    announced = next_material(first, NAMES, begin)
    assert announced.current == first.current
    assert announced.following is not None
    assert is_trusted(announced.following, announced.bundle, begin)
    assert next_material(announced, NAMES, begin + OVERLAP - timedelta(minutes=1)) == announced
    served = next_material(announced, NAMES, begin + OVERLAP)
    assert (served.current, served.following) == (announced.following, None)
    assert is_trusted(first.current, served.bundle, begin + OVERLAP), (
        "replicas that serve the old one are trusted still"
    )
    later = next_material(served, NAMES, START + LIFETIME + timedelta(minutes=1))
    assert len(later.authorities) == 1, "an authority that has expired is forgotten"


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 40 * 24 * 60), min_size=1, max_size=12))
def test_whatever_is_served_is_trusted_by_who_read_the_bundle_before(minutes: list[int]) -> None:
    """However long nobody looked: what a lagging replica serves, and what a lagging API server trusts, fit together.

    A replica that looked within the overlap serves what the newest bundle trusts, and what it announced in time is
    trusted by whoever has read the bundle of one step before.
    """
    now, material = START, next_material(None, NAMES, START)
    for step in minutes:
        before, now = material, now + timedelta(minutes=step)
        material = next_material(before, NAMES, now)
        assert is_trusted(material.current, material.bundle, now)
        assert decode(encode(material)) == material
        if step <= 30 and before.current != material.current:
            assert is_trusted(material.current, before.bundle, now), "it was served before it was announced"
        if before.expires > now:
            assert is_trusted(before.current, material.bundle, now), "an old one that still serves is not trusted"


def test_everybody_was_away_for_a_year() -> None:
    first = next_material(None, NAMES, START)
    after = START + timedelta(days=365)
    fresh = next_material(first, NAMES, after)
    assert is_trusted(fresh.current, fresh.bundle, after)
    assert fresh.following is None


def test_another_name_brings_another_certificate_at_once() -> None:
    first = next_material(None, NAMES, START)
    second = next_material(first, (*NAMES, "webhook.example.com"), START)
    assert is_trusted(second.current, second.bundle, START, "webhook.example.com")
    assert is_trusted(first.current, second.bundle, START)
    assert next_material(second, NAMES, START) == second, "more names than needed do no harm"


def damaged(**changes: bytes) -> dict[str, bytes]:
    return encode(next_material(None, NAMES, START)) | {key.replace("_", "."): value for key, value in changes.items()}


@pytest.mark.parametrize(
    "data",
    [
        {},
        damaged(tls_crt=b""),
        damaged(tls_key=b"x"),
        damaged(ca_crt=b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        damaged(tls_key=encode(next_material(None, NAMES, START))["tls.key"]),
        damaged(ca_crt=encode(next_material(None, NAMES, START))["ca.crt"]),
        damaged(next_crt=b"x", next_key=b"x"),
    ],
    ids=["empty", "no certificate", "no key", "no authority", "another key", "another authority", "no next"],
)
def test_what_does_not_belong_together_is_not_used(data: dict[str, bytes]) -> None:
    with pytest.raises(MaterialError):
        decode(data)


def self_signed(names: x509.ExtensionType | None) -> dict[str, bytes]:
    """Return what somebody else may put into the Secret: a certificate that is its own authority."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1, START, START + LIFETIME)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, form, plain)
    return {"tls.crt": certificate, "tls.key": private, "ca.crt": certificate}


UNKNOWN_KEY = b"-----BEGIN PRIVATE KEY-----\nMBQCAQAwBwYFKgMEBQYEBgQEAQIDBA==\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "data",
    [
        self_signed(None),
        self_signed(x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"x")),
        damaged(tls_key=UNKNOWN_KEY),
    ],
    ids=["no names", "names that cannot be read", "a key of an unknown kind"],
)
def test_certificates_of_others_that_cannot_serve_are_not_used(data: dict[str, bytes]) -> None:
    with pytest.raises(MaterialError):
        decode(data)


def test_what_a_clock_made_that_was_ahead_is_made_anew() -> None:
    """The API server would refuse it for as long as that clock was ahead, and GPU pods with it."""
    ahead = next_material(None, NAMES, START + timedelta(hours=5))
    after = next_material(ahead, NAMES, START)
    assert is_trusted(after.current, after.bundle, START)
    assert next_material(after, NAMES, START) == after
    renewal = START + LIFETIME - RENEW_BEFORE
    announced = next_material(next_material(None, NAMES, START), NAMES, renewal + timedelta(hours=5))
    again = next_material(announced, NAMES, renewal + timedelta(minutes=1))
    assert again.following is not None
    assert is_trusted(again.following, again.bundle, renewal + timedelta(minutes=1))
