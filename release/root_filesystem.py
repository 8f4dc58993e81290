"""The image's root file system: Python from Debian's packages, the locked wheels, and gputile; no shell, no compiler.

`mmdebstrap` fetches and unpacks the packages with what they depend on. No script of a package runs, so what is there is
what the packages carry, less what only a person at a terminal or a package manager would use.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

SUITE: Final = "bookworm"
DEBIAN_PACKAGES: Final = ("python3.11-minimal", "libpython3.11-stdlib", "libstdc++6")
# Packages depend on them for installing and for a terminal: what is unpacked here has no use for either.
WITHOUT: Final = ("dpkg", "tar", "readline-common", "gcc-12-base")
_WITHOUT_SUFFIXES: Final = {".pyi", ".pxd", ".pyx", ".h", ".c"}  # in wheels
_WITHOUT_PATHS: Final = (
    "etc/alternatives",
    "etc/apt",
    "etc/cron.daily",
    "etc/default",
    "etc/fstab",
    "etc/hostname",  # this one and the next are the building machine's
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
SITE_PACKAGES: Final = f"{PREFIX}/lib/python3.11/site-packages"
USER: Final = 65532
_ACCOUNTS: Final = {
    "etc/passwd": f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/nonexistent:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
}
_SCRIPT: Final = """#!{python}
import sys

from {module} import {function}

sys.exit({function}())
"""


class ToolMissing(RuntimeError):
    """A program that builds the image is not installed."""


@dataclass(frozen=True, order=True)
class DebianPackage:
    """A package whose files are in the image."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True)
class RootFilesystem:
    """What was built: the directories that become layers, lowest first, and the Debian packages of the first."""

    layers: tuple[Path, ...]
    debian: tuple[DebianPackage, ...]

    @property
    def python(self) -> list[Distribution]:
        """The Python distributions of all layers, by name."""
        paths = [str(layer / SITE_PACKAGES.lstrip("/")) for layer in self.layers]
        return sorted(distributions(path=paths), key=lambda found: found.name.lower())


def build(project: Path, directory: Path, epoch: int) -> RootFilesystem:
    """Build the root file system of the sources in ``project`` below ``directory``, which must be empty.

    Each layer has what changes about as often: Debian's packages, the locked wheels, gputile itself. ``epoch`` is the
    time that goes into what is built, in seconds of Unix time.

    Raises:
        ToolMissing: mmdebstrap or a C compiler is not installed.
        subprocess.CalledProcessError: a package cannot be fetched or built.
    """
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    base, wheels, own = (directory / name for name in ("debian", "wheels", "gputile"))
    packages = _unpack_debian(base, environment)
    _install(wheels, ["--require-hashes", "-r", project / "requirements" / "runtime.txt"], environment)
    _slim(wheels)
    with tempfile.TemporaryDirectory() as built:
        _install(own, ["--no-deps", _build_wheel(project, Path(built), environment)], environment)
    _write_entry_points(own)
    for layer in (base, wheels, own):
        _compile(layer, environment)
    return RootFilesystem((base, wheels, own), packages)


def _unpack_debian(root: Path, environment: Mapping[str, str]) -> tuple[DebianPackage, ...]:
    if shutil.which("mmdebstrap") is None:
        raise ToolMissing("mmdebstrap is not installed, which unpacks Debian's packages: apt-get install mmdebstrap")
    with tempfile.TemporaryDirectory() as notes:
        listed, surplus = Path(notes, "packages"), Path(notes, "surplus")
        show = "dpkg-deb --showformat='${Package} ${Version} ${Architecture}\\n' -W"
        archives = '"$1"/var/cache/apt/archives'
        hooks = [
            f'for deb in {archives}/*.deb; do {show} "$deb"; done > {listed}',
            *(f"for deb in {archives}/{name}_*.deb; do "
              f'dpkg-deb --fsys-tarfile "$deb" | tar --list; done >> {surplus}' for name in WITHOUT),
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
            env=environment,
        )
        packages = tuple(sorted(DebianPackage(*line.split()) for line in listed.read_text().splitlines()))
        _remove(root, surplus.read_text().splitlines())
    for name, text in _ACCOUNTS.items():
        (root / name).write_text(text)
    for name in ("dev", "proc", "sys", "run"):
        (root / name).mkdir(exist_ok=True)
    _unpack_prefix(root)
    return tuple(package for package in packages if package.name not in WITHOUT)


def _remove(root: Path, surplus: Sequence[str]) -> None:
    """Remove the files of surplus packages, what nobody reads in a container, and directories that are empty then."""
    for name in surplus:
        path = root / name.lstrip("./")
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
    _remove_empty(root, keep={root / "tmp"})


def _remove_empty(root: Path, keep: Collection[Path] = ()) -> None:
    for path in sorted((each for each in root.rglob("*") if each.is_dir() and not each.is_symlink()), reverse=True):
        if path not in keep and not any(path.iterdir()):
            path.rmdir()


def _unpack_prefix(root: Path) -> None:
    """Write a virtual environment's frame: Python finds what lies beside ``pyvenv.cfg``."""
    prefix = root / PREFIX.lstrip("/")
    (prefix / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (prefix / "bin" / name).symlink_to(PYTHON)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")


def _build_wheel(project: Path, directory: Path, environment: Mapping[str, str]) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={directory}"]
    built = subprocess.run(command, check=False, cwd=project, env=environment, capture_output=True, text=True)
    if built.returncode != 0:
        sys.stderr.write(built.stderr)
        built.check_returncode()
    (wheel,) = directory.glob("*.whl")
    if not wheel.stem.endswith(os.uname().machine):
        raise ToolMissing("no C compiler (cc) is installed, which the library for GPU nodes needs: apt-get install gcc")
    return wheel


def _install(layer: Path, what: Sequence[str | Path], environment: Mapping[str, str]) -> None:
    target = layer / SITE_PACKAGES.lstrip("/")
    command: list[str | Path] = [
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-config",
        "--python-version=3.11",
        "--target",
        target,
    ]
    options = ["--link-mode=copy", "--only-binary=:all:", f"--python={sys.executable}"]
    subprocess.run([*command, *options, *what], check=True, env={**environment, "PATH": _with_own_tools()})
    shutil.rmtree(target / "bin", ignore_errors=True)  # their first line names the Python that installed them
    for name in (".lock", ".gitignore", "CACHEDIR.TAG"):
        (target / name).unlink(missing_ok=True)
    for recorded in target.glob("*.dist-info"):
        for name in ("direct_url.json", "uv_cache.json", "RECORD", "REQUESTED"):
            (recorded / name).unlink(missing_ok=True)  # they tell paths and times of this machine


def _slim(layer: Path) -> None:
    """Remove what wheels carry beside the code that runs: tests, headers, debug symbols, a library's second copy."""
    for path in sorted(layer.rglob("*")):
        if path.is_file() and (path.suffix in _WITHOUT_SUFFIXES or "tests" in path.relative_to(layer).parts):
            path.unlink()
    _remove_empty(layer)
    strip = shutil.which("strip")
    if strip is None:
        raise ToolMissing(
            "strip is not installed, which takes debug symbols out of libraries: apt-get install binutils"
        )
    seen: dict[tuple[Path, bytes], Path] = {}
    for library in sorted(path for path in layer.rglob("*.so*") if path.is_file()):
        key = (library.parent, hashlib.sha256(library.read_bytes()).digest())
        if (first := seen.setdefault(key, library)) != library:
            library.unlink()
            library.symlink_to(first.name)
        elif not library.parent.name.endswith(".libs"):  # those were changed by patchelf, which strip does not bear
            subprocess.run([strip, "--strip-unneeded", library], check=True)


def _with_own_tools() -> str:
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def _write_entry_points(layer: Path) -> None:
    (declared,) = (layer / SITE_PACKAGES.lstrip("/")).glob("gputile-*.dist-info/entry_points.txt")
    parser = ConfigParser(delimiters=("=",))
    parser.read_string(declared.read_text())
    directory = layer / PREFIX.lstrip("/") / "bin"
    directory.mkdir()
    for name, target in parser["console_scripts"].items():
        module, _, function = target.partition(":")
        script = directory / name
        script.write_text(_SCRIPT.format(python=f"{PREFIX}/bin/python", module=module, function=function))
        script.chmod(0o755)


def _compile(layer: Path, environment: Mapping[str, str]) -> None:
    """Compile what is imported: the containers' file systems are read-only. None is checked at the start, since nothing
    changes in an image.

    A process of its own compiles each layer: what a process has interned before shows in the compiled bytes.
    """
    for sources in (SITE_PACKAGES, "/usr/lib/python3.11"):
        found = layer / sources.lstrip("/")
        if found.is_dir():
            mode = ["-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash"]
            command = [sys.executable, "-S", *mode, "-s", str(found), "-p", sources, str(found)]
            subprocess.run(command, check=True, env={**environment, "PYTHONPYCACHEPREFIX": ""})
