"""Builds the image's root file system, with Python, the locked wheels and gputile.

Python comes from Debian's packages. The image contains no shell and no compiler. `mmdebstrap`
fetches and unpacks the packages and their dependencies. It runs no scripts of packages, so the
image contains only files of packages. Files that only users of a terminal or a package manager need
are removed.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from release.python_packages import (
    ToolMissing,
    build_distribution,
    compile_all,
    console_scripts,
    environment,
    install,
    remove_empty,
    slim,
)

SUITE: Final = "bookworm"
DEBIAN_PACKAGES: Final = ("base-files", "python3.11-minimal", "libpython3.11-stdlib", "libstdc++6")
# Other packages depend on these for their installation or for a terminal, neither of which the
# image needs.
WITHOUT: Final = ("dpkg", "mawk", "tar", "readline-common")
_WITHOUT_PATHS: Final = (
    "etc/alternatives",
    "etc/apt",
    "etc/cron.daily",
    "etc/default",
    "etc/fstab",
    "etc/hostname",  # this file and the next one are copied from the build machine
    "etc/resolv.conf",
    "etc/logrotate.d",
    "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/idlelib",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/aarch64-linux-gnu/gconv",
    "usr/share/binfmts",
    "usr/share/bug",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "var/cache",
    "var/lib",
    "var/log",
)
PREFIX: Final = "/opt/gputile"
PYTHON: Final = "/usr/bin/python3.11"
STANDARD_LIBRARY: Final = "usr/lib/python3.11"
SITE_PACKAGES: Final = f"{PREFIX}/lib/python3.11/site-packages"
USER: Final = 65532
_ACCOUNTS: Final = {
    "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\n"
    f"nonroot:x:{USER}:{USER}:nonroot:/nonexistent:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
}
_SCRIPT: Final = """#!{python}
import sys

from {module} import {function}

sys.exit({function}())
"""


@dataclass(frozen=True, order=True)
class DebianPackage:
    """A package whose files are in the image, and the licences that its copyright file names."""

    name: str
    version: str
    architecture: str
    licenses: tuple[str, ...] = ()


@dataclass(frozen=True)
class RootFilesystem:
    """The result of a build.

    It contains the directories that become layers, the lowest layer first, and the Debian packages
    of the first layer.
    """

    layers: tuple[Path, ...]
    debian: tuple[DebianPackage, ...]

    @property
    def python(self) -> list[Distribution]:
        """The Python distributions of all layers, by name."""
        paths = [str(_site(layer)) for layer in self.layers]
        return sorted(distributions(path=paths), key=lambda found: found.name.lower())


def build(project: Path, directory: Path, epoch: int) -> RootFilesystem:
    """Build the root file system of the sources in ``project`` below the empty ``directory``.

    There is one layer for Debian's packages, one for the locked wheels, and one for gputile,
    because they change at different rates. ``epoch`` is the time of the built files, in seconds of
    Unix time.

    Raises:
        ToolMissing: mmdebstrap or a C compiler is not installed.
        subprocess.CalledProcessError: a package cannot be fetched or built.
    """
    settings = environment(epoch)
    base, wheels, own = (directory / name for name in ("debian", "wheels", "gputile"))
    packages = _unpack_debian(base, settings)
    install(
        _site(wheels),
        ["--require-hashes", "-r", project / "requirements" / "runtime.txt"],
        settings,
    )
    slim(wheels)
    with tempfile.TemporaryDirectory() as built:
        install(
            _site(own),
            ["--no-deps", build_distribution(project, "wheel", Path(built), settings)],
            settings,
        )
    _write_entry_points(own)
    compile_all(base / STANDARD_LIBRARY, f"/{STANDARD_LIBRARY}", settings)
    for layer in (wheels, own):
        compile_all(_site(layer), SITE_PACKAGES, settings)
    return RootFilesystem((base, wheels, own), packages)


def _site(layer: Path) -> Path:
    return layer / SITE_PACKAGES.lstrip("/")


def _unpack_debian(root: Path, settings: Mapping[str, str]) -> tuple[DebianPackage, ...]:
    if shutil.which("mmdebstrap") is None:
        raise ToolMissing(
            "mmdebstrap is not installed, which unpacks Debian's packages: apt-get install "
            "mmdebstrap"
        )
    with tempfile.TemporaryDirectory() as notes:
        listed, surplus = Path(notes, "packages"), Path(notes, "surplus")
        show = "dpkg-deb --showformat='${Package} ${Version} ${Architecture}\\n' -W"
        archives = '"$1"/var/cache/apt/archives'
        hooks = [
            f'for deb in {archives}/*.deb; do {show} "$deb"; done > {listed}',
            *(f"for deb in {archives}/{name}_*.deb; do "
              f'dpkg-deb --fsys-tarfile "$deb" | tar --list; done >> {surplus}'
              for name in WITHOUT),
        ]  # fmt: skip
        subprocess.run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=extract",
                f"--include={','.join(DEBIAN_PACKAGES)}",
                *(f"--extract-hook={hook}" for hook in hooks),
                SUITE,
                str(root),
            ],
            check=True,
            env=settings,
        )
        lines = (line.split() for line in listed.read_text().splitlines())
        packages = sorted(DebianPackage(name, version, machine) for name, version, machine in lines)
        _remove(root, surplus.read_text().splitlines())
    for name, text in _ACCOUNTS.items():
        (root / name).write_text(text)
    for name in ("dev", "proc", "sys", "run"):
        (root / name).mkdir(exist_ok=True)
    _write_virtual_environment(root)
    kept = (package for package in packages if package.name not in WITHOUT)
    return tuple(
        replace(package, licenses=_licenses(root / "usr/share/doc" / package.name))
        for package in kept
    )


def _licenses(documents: Path) -> tuple[str, ...]:
    """Return the licences that a copyright file names.

    They are read from its fields (DEP 5), or else from the licence texts that it refers to.
    """
    text = (documents / "copyright").read_text(encoding="utf-8")
    named = (
        re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)
        if text.startswith("Format:")
        else []
    )
    referred = re.findall(r"/usr/share/common-licenses/([A-Za-z](?:[\w.+-]*\w)?)", text)
    return tuple(sorted({name.strip() for name in named or referred}))


def _remove(root: Path, surplus: Sequence[str]) -> None:
    """Remove the files of surplus packages, files that containers do not need, and empty
    directories.
    """
    for name in surplus:
        path = root / name.removeprefix("./")
        if path.is_symlink() or path.is_file():
            path.unlink()
    for name in _WITHOUT_PATHS:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for document in sorted((root / "usr/share/doc").rglob("*")):
        if not document.is_dir() and document.name != "copyright":
            document.unlink()
    remove_empty(root, keep={root / "tmp"})


def _write_virtual_environment(root: Path) -> None:
    """Write ``pyvenv.cfg``, by which Python finds the packages next to it."""
    prefix = root / PREFIX.lstrip("/")
    (prefix / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (prefix / "bin" / name).symlink_to(PYTHON)
    (prefix / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
    )


def _write_entry_points(layer: Path) -> None:
    directory = layer / PREFIX.lstrip("/") / "bin"
    directory.mkdir()
    for name, (module, function) in console_scripts(_site(layer)).items():
        script = directory / name
        script.write_text(
            _SCRIPT.format(python=f"{PREFIX}/bin/python", module=module, function=function)
        )
        script.chmod(0o755)


def main() -> int:
    """Build into the directory that the command line names.

    A step of the Dockerfile runs this, where only uv is installed.
    """
    (output,) = sys.argv[1:]
    build(Path.cwd(), Path(output), int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
