"""The page's certificate: read from files, taken up anew, and kept where the new one is broken."""

import shutil
from pathlib import Path

import pytest

from gputile.tools.web.certificate import CertificateError, ServedCertificate
from tests.localcluster.certificates import Authority, KeyPair

pytestmark = pytest.mark.requirement("B7")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def put(pair: KeyPair, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    shutil.copy(pair.certificate, directory / "tls.crt")
    shutil.copy(pair.key, directory / "tls.key")


def test_files_that_are_not_there_or_no_certificate_are_named(authority: Authority, tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    with pytest.raises(CertificateError, match=r"tls\.crt: No such file or directory"):
        ServedCertificate(directory)
    put(authority.server("page", ["localhost"]), directory)
    ServedCertificate(directory)
    shutil.copy(authority.server("other", ["localhost"]).key, directory / "tls.key")
    with pytest.raises(CertificateError, match="no certificate with its key"):
        ServedCertificate(directory)


def test_a_broken_new_certificate_is_said_and_the_old_one_serves_on(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "tls"
    put(authority.server("page", ["localhost"]), directory)
    served = ServedCertificate(directory)
    (directory / "tls.crt").write_text("broken")
    served.look()
    assert "serves on" in caplog.text
    caplog.clear()
    put(authority.server("next", ["localhost"]), directory)
    served.look()
    assert caplog.text == ""
