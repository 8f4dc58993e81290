"""Builds what a release consists of: ``python -m release image``, which `make image` runs."""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gputile.version import VERSION
from release.image import build_image
from release.root_filesystem import ToolMissing, build

PROJECT: Final = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what the command line names; return 2 where a tool is missing or a step fails."""
    options = _parser().parse_args(arguments)
    try:
        if options.what == "root":
            build(PROJECT, options.output, _epoch())
            return 0
        return _image(options.output, options.repository)
    except ToolMissing as missing:
        print(f"error: {missing}", file=sys.stderr)
    except subprocess.CalledProcessError as failed:
        print(f"error: {failed.cmd[0]} ended with {failed.returncode}: see its output above", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    image = commands.add_parser("image", help="the container image as an OCI archive, and its bill of materials")
    image.add_argument("--output", type=Path, default=PROJECT / "dist", help="directory (default: dist)")
    image.add_argument("--repository", default="localhost/gputile", help="name without tag (default: %(default)s)")
    root = commands.add_parser("root", help="the image's files only, a directory for each layer")
    root.add_argument("--output", type=Path, required=True, help="directory that is empty or not there yet")
    return parser


def _image(output: Path, repository: str) -> int:
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        image = build_image(PROJECT, Path(directory), output, f"{repository}:{VERSION}", _epoch(), platform.machine())
    mib = sum(image.written.layer_bytes) / 2**20
    print(f"{image.archive}: {image.reference}, {mib:.0f} MiB unpacked, {image.written.digest}")
    print(f"{image.bill}: {image.components} components")
    return 0


def _epoch() -> int:
    """Return the time that goes into the artefacts: SOURCE_DATE_EPOCH, else the time of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.check_output(command, cwd=PROJECT, stderr=subprocess.DEVNULL))
    except (FileNotFoundError, subprocess.CalledProcessError):
        return 0  # an unpacked archive of the sources


if __name__ == "__main__":
    sys.exit(main())
