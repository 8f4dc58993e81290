"""Images that run on the tests' nodes, made here because no image registry is needed for a static program."""

import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.localcluster.gomodule import ComponentMissing

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PROBE_IMAGE = "localhost/gputile-probe:1"
PAUSE_IMAGE = "localhost/gputile-pause:1"
SHOW = ("/probe", "show")
SHOW_ONCE = ("/probe", "once")
LEAVE = ("/probe", "leave")
SAMPLE_IMAGE = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:tensorflow-1.5"  # of the documents
_HERE = Path(__file__).parent


def write_images(directory: Path) -> Path:
    """Write an archive of the image, under both of its names, as ``docker save`` does; return its path.

    Raises:
        ComponentMissing: there is no C compiler, or no static C library.
    """
    program = _compiled("probe.c", directory / "probe", "-static")
    path = directory / "images.tar"
    _write_image(path, (PROBE_IMAGE, PAUSE_IMAGE), {"probe": program.read_bytes()}, {"Entrypoint": ["/probe"]})
    return path


def write_sample_image(directory: Path) -> Path:
    """Write an archive of what stands for the documents' image: its ``bash`` is ``sample.c``; return its path.

    A GPU's libraries are loaded by the dynamic loader, so the image has this machine's, with its C library.

    Raises:
        ComponentMissing: there is no C compiler.
    """
    program = _compiled("sample.c", directory / "sample")
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = re.findall(r"(/\S+) \(0x", listed)
    files = {path.lstrip("/"): Path(path).read_bytes() for path in libraries}
    path = directory / "sample.tar"
    configuration = {"Env": ["PATH=/usr/bin"]}
    _write_image(path, (SAMPLE_IMAGE,), files | {"usr/bin/bash": program.read_bytes()}, configuration)
    return path


def _compiled(source: str, program: Path, *options: str) -> Path:
    flags = [*options, "-Os", "-s", "-Wall", "-Wextra", "-Werror"]
    try:
        done = subprocess.run(
            ["cc", *flags, "-o", str(program), str(_HERE / source)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise ComponentMissing("no C compiler (cc), which the tests' container images are made with") from error
    if done.returncode != 0:
        raise ComponentMissing(f"the tests' container images cannot be made: {done.stderr[-800:]}")
    return program


def write_program_image(path: Path, reference: str, program: Path) -> Path:
    """Write an archive of an image that has nothing but a static program, on its PATH; return ``path``."""
    place = f"usr/local/bin/{program.name}"
    configuration = {"Entrypoint": [f"/{place}"], "Env": ["PATH=/usr/local/bin"]}
    _write_image(path, (reference,), {place: program.read_bytes()}, configuration)
    return path


def _write_image(
    path: Path, references: Sequence[str], files: Mapping[str, bytes], configuration: Mapping[str, object]
) -> None:
    """Write an archive of an image under these names, as ``docker save`` does."""
    layer = _tar(files)
    document = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": list(references), "Layers": ["layer.tar"]}]
    described = {"config.json": document, "manifest.json": manifest}
    path.write_bytes(_tar({"layer.tar": layer} | {name: json.dumps(body).encode() for name, body in described.items()}))


def _tar(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
