"""The commit and the time of a release's sources, read from a real repository."""

import subprocess
from pathlib import Path

import pytest
from release.sources import Sources, sources_of


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit, of the second 1,700,000,000."""
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("GIT_COMMITTER_DATE", "1700000000 +0000")
    path = tmp_path / "sources"
    path.mkdir()
    (path / "file").write_text("1")
    for command in (["init"], ["add", "file"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-m", "one"]):
        subprocess.run(["git", *command], cwd=path, check=True, capture_output=True)
    return path


def test_a_commit_is_named(repository: Path) -> None:
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()
    assert sources_of(repository) == Sources(repository, 1_700_000_000, commit)


@pytest.mark.parametrize("name", ["file", "more"])
def test_changed_sources_are_no_commit(repository: Path, name: str) -> None:
    (repository / name).write_text("2")
    assert sources_of(repository) == Sources(repository, 1_700_000_000, "")


def test_the_time_can_be_given(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert sources_of(repository).epoch == 12


def test_an_unpacked_archive_has_no_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / ".git").rename(repository.parent / "elsewhere")
    assert sources_of(repository) == Sources(repository, 0, "")
    monkeypatch.setenv("PATH", str(repository))
    assert sources_of(repository) == Sources(repository, 0, "")
