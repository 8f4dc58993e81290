"""The one image that runs on the tests' node, made here because no image registry is needed for a static program."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

from tests.localcluster.toolchain import ComponentMissing

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PROBE_IMAGE = "localhost/gputile-probe:1"
PAUSE_IMAGE = "localhost/gputile-pause:1"
SHOW = ("/probe", "show")
SHOW_ONCE = ("/probe", "once")
LEAVE = ("/probe", "leave")
_SOURCE = Path(__file__).with_name("probe.c")


def write_images(directory: Path) -> Path:
    """Write an archive of the image, under both of its names, as ``docker save`` does; return its path.

    Raises:
        ComponentMissing: there is no C compiler, or no static C library.
    """
    program = directory / "probe"
    command = ["cc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ComponentMissing("no C compiler (cc), which the tests' container image is made with") from error
    if done.returncode != 0:
        raise ComponentMissing(f"the tests' container image cannot be made: {done.stderr[-800:]}")
    layer = _tar({"probe": program.read_bytes()})
    configuration = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/probe"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PROBE_IMAGE, PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    path = directory / "images.tar"
    files = {"config.json": configuration, "manifest.json": manifest}
    path.write_bytes(_tar({"layer.tar": layer} | {name: json.dumps(body).encode() for name, body in files.items()}))
    return path


def _tar(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
