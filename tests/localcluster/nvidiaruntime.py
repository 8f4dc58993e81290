"""Hands a node's GPUs to containers, as NVIDIA's container runtime: ``nvidiaruntime.py DRIVER RUNTIME ARGUMENT...``.

A container whose environment names GPUs in NVIDIA_VISIBLE_DEVICES gets the driver's libraries where its loader looks
for them, as NVIDIA_DRIVER_CAPABILITIES says, and sees these GPUs only. Here the libraries are fakes, and the state of
their GPUs is a directory that stands for the driver in the kernel.
"""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

DRIVER_STATE = "/opt/fake-nvidia-driver"
LIBRARIES = f"/usr/lib/{platform.machine()}-linux-gnu"
CONTROL = "/dev/nvidiactl"  # what shows that a machine has NVIDIA's driver
_NOTHING = ("", "void", "none")
_BY_DEFAULT = "utility,compute"
_WRAPPER = """#!/bin/sh
case " $* " in
*" create "*) exec {python} -I -S {script} {driver} {runtime} "$@" ;;
*) exec {runtime} "$@" ;;
esac
"""


def write_wrapper(path: Path, runtime: Path, driver: Path) -> Path:
    """Write a program to ``path`` that is used in place of ``runtime`` and hands over ``driver``; return its path."""
    path.write_text(_WRAPPER.format(python=sys.executable, script=__file__, driver=driver, runtime=runtime))
    path.chmod(0o755)
    return path


def main() -> None:
    """Change the bundle that the arguments name, then run the runtime in place of this process."""
    driver, *command = sys.argv[1:]
    configuration = Path(command[command.index("--bundle") + 1]) / "config.json"
    specification = json.loads(configuration.read_bytes())
    environment = dict(entry.partition("=")[::2] for entry in specification["process"].get("env", []))
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible not in _NOTHING:
        _hand_over(specification, environment, json.loads(Path(driver).read_bytes()))
        configuration.write_text(json.dumps(specification))
    os.execv(command[0], command)


def _hand_over(specification: dict[str, Any], environment: dict[str, str], driver: dict[str, Any]) -> None:
    wanted = (environment.get("NVIDIA_DRIVER_CAPABILITIES") or _BY_DEFAULT).split(",")
    libraries = [path for kind, paths in driver["libraries"].items() if kind in wanted for path in paths]
    binds = {path: f"{LIBRARIES}/{Path(path).name}" for path in libraries} | {"/dev/null": CONTROL}
    mounts = [_bind(source, target, "ro") for source, target in binds.items()]
    mounts.append(_bind(driver["state"], DRIVER_STATE, "rw"))
    specification["mounts"] += mounts
    given = dict(driver["environment"])
    if environment["NVIDIA_VISIBLE_DEVICES"] != "all":
        given["CUDA_VISIBLE_DEVICES"] = environment["NVIDIA_VISIBLE_DEVICES"]  # the others' device files are not there
    specification["process"]["env"] += [f"{name}={value}" for name, value in given.items()]


def _bind(source: str, target: str, mode: str) -> dict[str, Any]:
    return {"source": source, "destination": target, "type": "bind", "options": ["bind", mode, "nosuid"]}


if __name__ == "__main__":
    main()
