"""Runs ``python -m release``, which builds the artefacts of a release.

`make release` runs ``python -m release all``. Other commands build one artefact.
"""

import argparse
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from release.artefacts import NotAsPromised, Release, build_container_image, build_release
from release.python_packages import ToolMissing
from release.sources import sources_of
from release.verification import verify_release

PROJECT: Final = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the artefacts that the command line names.

    Return 2 if a tool is missing, a step fails, or a file does not pass its check.
    """
    options = _parser().parse_args(arguments)
    try:
        _COMMANDS[options.what](options)
        return 0
    except (ToolMissing, NotAsPromised) as error:
        print(f"error: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as failed:
        print(
            f"error: {failed.cmd[0]} ended with {failed.returncode}: see its output above",
            file=sys.stderr,
        )
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, told in (
        ("all", "every artefact, their checksums, and a trial of the plugins and the wheel"),
        ("image", "the container image as an OCI archive, and its bill of materials"),
    ):
        command = commands.add_parser(name, help=told)
        command.add_argument(
            "--output", type=Path, default=PROJECT / "dist", help="directory (default: dist)"
        )
        command.add_argument(
            "--repository",
            type=_repository,
            default="localhost/gputile",
            help="the name of the image without a tag",
        )
        command.add_argument(
            "--url",
            type=_address,
            default="",
            help="the download address; without it, no krew manifests are built",
        )
    return parser


def _address(text: str) -> str:
    if text and re.fullmatch(r"https://[^\s/]+(/\S*)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address that begins with https://")
    return text.rstrip("/")


# A path component of the distribution project's reference grammar (distribution/reference), after
# an optional host.
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?{_COMPONENT}(?:/{_COMPONENT})*"
)


def _repository(text: str) -> str:
    if _REPOSITORY.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an image's name without a tag, like registry.example.com/gputile"
        )
    return text


def _release(options: argparse.Namespace) -> Release:
    options.output.mkdir(parents=True, exist_ok=True)
    return Release(sources_of(PROJECT), platform.machine(), options.repository, options.url)


def _build_all(options: argparse.Namespace) -> None:
    release = _release(options)
    for path in build_release(release, options.output):
        print(f"built     {path.name}: {-(-path.stat().st_size // 1024):,} KiB", flush=True)
    for line in verify_release(release, options.output):
        print(f"verified  {line}", flush=True)
    if not release.url:
        print(
            "left out  krew's manifests: make release URL=https://... says where people will load "
            "the files from"
        )


def _build_image(options: argparse.Namespace) -> None:
    for path in build_container_image(_release(options), options.output):
        print(path)


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], None]]] = {
    "all": _build_all,
    "image": _build_image,
}


if __name__ == "__main__":
    sys.exit(main())
