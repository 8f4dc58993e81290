"""Takes the system call filter out of a container's bundle, and becomes runc: ``withoutseccomp.py RUNC ARGUMENT...``.

runc filters system calls by a C library that may not be here to build with, and refuses what it cannot filter. The
kubelet asks for a filter in every pod. None of the tests is about it.
"""

import json
import os
import sys
from pathlib import Path

WRAPPER = """#!/bin/sh
case " $* " in
*" create "*) exec {python} -I -S {script} {runc} "$@" ;;
*) exec {runc} "$@" ;;
esac
"""


def write_wrapper(path: Path, runc: Path) -> Path:
    """Write a program to ``path`` that is used in place of ``runc``; return its path."""
    path.write_text(WRAPPER.format(python=sys.executable, script=__file__, runc=runc))
    path.chmod(0o755)
    return path


def main() -> None:
    """Change the bundle that the arguments name, then run runc in place of this process."""
    arguments = sys.argv[1:]
    configuration = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
    specification = json.loads(configuration.read_bytes())
    if specification.get("linux", {}).pop("seccomp", None) is not None:
        configuration.write_text(json.dumps(specification))
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()
