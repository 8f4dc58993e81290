"""Builds all files of a release in one directory, with their checksums."""

import hashlib
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from gputile.version import VERSION
from release.archives import pack
from release.image import build_image
from release.python_packages import build_distribution, console_scripts, environment, install, slim
from release.sources import Sources

# kubectl finds plugins by their file name. The names in krew omit "kubectl-".
PLUGINS: Final = {
    "gputile": ("kubectl-gputile", "Share GPUs: why pods wait, what fits where, what the nodes do"),
    "inspect-cgpu": (
        "kubectl-inspect-cgpu",
        "Show the allocation of shared GPU memory by node and pod",
    ),
}
_SCRIPT: Final = """#!/usr/bin/env python3.11
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
from {module} import {function}

sys.exit({function}())
"""
_CAVEATS: Final = (
    "It needs Python 3.11 on PATH, as python3.11. krew writes a dash of a plugin's name as an "
    "underscore: what is "
    "`kubectl inspect cgpu` elsewhere is `kubectl inspect-cgpu` by krew."
)


class NotAsPromised(RuntimeError):
    """A file of a release does not work. The message names the file and describes the failure."""


@dataclass(frozen=True)
class Release:
    """The inputs of a release.

    ``machine`` is the processor as printed by ``uname -m``. ``repository`` is the name of the image
    without a tag. ``url`` is the address from which users will download the files, or "" if it is
    unknown.
    """

    sources: Sources
    machine: str
    repository: str
    url: str

    @property
    def reference(self) -> str:
        """The name of the image with its tag."""
        return f"{self.repository}:{VERSION}"


def build_release(release: Release, output: Path) -> Iterator[Path]:
    """Write each artefact into ``output``, and then the checksums. Yield the path of each file.

    Raises:
        NotAsPromised: the changelog has no section for this version.
        ToolMissing: mmdebstrap, strip or a C compiler is not installed.
        subprocess.CalledProcessError: a package cannot be fetched or built.
    """
    written: list[Path] = []
    for build in (
        build_notes,
        build_python,
        build_chart,
        build_plugins,
        build_krew_manifests,
        build_container_image,
    ):
        for path in build(release, output):
            written.append(path)
            yield path
    yield write_sums(output, written)


def write_sums(output: Path, files: Iterable[Path]) -> Path:
    """Write the checksums of ``files`` in the format of sha256sum(1). Return the path."""
    sums = output / "SHA256SUMS"
    sums.write_text("".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(files)))
    return sums


def build_notes(release: Release, output: Path) -> Iterator[Path]:
    """Yield the release notes, which are the changelog's section for this version."""
    changelog = (release.sources.project / "CHANGELOG.md").read_text(encoding="utf-8")
    for section in changelog.split("\n## ")[1:]:
        if section.startswith(f"{VERSION} ("):
            path = output / f"gputile-{VERSION}.md"
            path.write_text(f"# gputile {section.strip()}\n", encoding="utf-8")
            yield path
            return
    raise NotAsPromised(
        f"CHANGELOG.md says nothing of {VERSION}: make version VERSION={VERSION} writes it"
    )


def build_python(release: Release, output: Path) -> Iterator[Path]:
    """Yield the wheel and the source archive."""
    for kind in ("wheel", "sdist"):
        with tempfile.TemporaryDirectory() as directory:
            found = build_distribution(
                release.sources.project, kind, Path(directory), environment(release.sources.epoch)
            )
            yield Path(found.replace(output / found.name))


def build_chart(release: Release, output: Path) -> Iterator[Path]:
    """Yield the chart's archive, with the file name that ``helm package`` gives it."""
    path = output / f"gputile-{VERSION}.tgz"
    path.write_bytes(
        pack({"gputile": release.sources.project / "charts" / "gputile"}, release.sources.epoch)
    )
    yield path


def build_plugins(release: Release, output: Path) -> Iterator[Path]:
    """Yield the archive of the kubectl plugins, with all modules that the plugins import."""
    archive = _plugins_archive(release, output)
    with tempfile.TemporaryDirectory() as directory:
        settings, library = environment(release.sources.epoch), Path(directory, "lib")
        install(
            library,
            ["--require-hashes", "-r", release.sources.project / "requirements" / "runtime.txt"],
            settings,
        )
        slim(library)
        with tempfile.TemporaryDirectory() as built:
            wheel = build_distribution(release.sources.project, "wheel", Path(built), settings)
            install(library, ["--no-deps", wheel], settings)
        content: dict[str, Path | str] = {
            "lib": library,
            "LICENSE": release.sources.project / "LICENSE",
        }
        for name, (module, function) in console_scripts(library).items():
            if name.startswith("kubectl"):
                content[name] = _SCRIPT.format(module=module, function=function)
        archive.write_bytes(pack(content, release.sources.epoch))
    yield archive


def build_krew_manifests(release: Release, output: Path) -> Iterator[Path]:
    """Yield the krew manifest of each plugin. Yield nothing if the download address is unknown."""
    archive = _plugins_archive(release, output)
    for plugin in PLUGINS if release.url else ():
        path = output / f"{plugin}.krew.yaml"
        path.write_text(yaml.safe_dump(krew_manifest(release, plugin, archive), sort_keys=False))
        yield path


def _plugins_archive(release: Release, output: Path) -> Path:
    return output / f"gputile-kubectl-{VERSION}-{release.machine}.tar.gz"


def build_container_image(release: Release, output: Path) -> Iterator[Path]:
    """Yield the image's archive and its bill of materials."""
    with tempfile.TemporaryDirectory() as directory:
        image = build_image(
            release.sources, Path(directory), output, release.reference, release.machine
        )
    yield image.archive
    yield image.bill


def krew_manifest(release: Release, plugin: str, archive: Path) -> Mapping[str, Any]:
    """Return the krew manifest of a plugin in ``archive``.

    The format is krew.googlecontainertools.github.com/v1alpha2.
    """
    program, description = PLUGINS[plugin]
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(release.machine, release.machine)
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": plugin},
        "spec": {
            "version": f"v{VERSION}",
            "shortDescription": description,
            "caveats": _CAVEATS,
            "platforms": [
                {
                    "selector": {
                        "matchLabels": {"os": platform.system().lower(), "arch": architecture}
                    },
                    "uri": f"{release.url}/{archive.name}",
                    "sha256": _sha256(archive),
                    "bin": program,
                }
            ],
        },
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
