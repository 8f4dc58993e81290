"""Makes the mounts of the agent's init container.

``python -m gputile.node.agent.files.node_mounts MIB USAGE STATE [PIPES]``

The chart runs it as an init container of the agent, the only thing of the agent that may mount. The mounts are made
in directories of the host whose mounts are shared, and stay there when the container ends.
"""

import sys
from pathlib import Path

from gputile.node.agent.files.isolation_mounts import LIBRARY_DIRECTORY
from gputile.node.agent.files.mounts import BIND, mount, mounts
from gputile.node.agent.files.usage_mount import mount_small, mount_usage


def mount_library(state: Path) -> None:
    """Mount the library's directory of the agent's directory ``state`` onto itself.

    A host may have that file system mounted ``noexec``, and a container's mount of the library then has the flag too,
    always so in a user namespace: the loader runs programs without the library. runc of 1.2 and later gives the mounts
    of a pod's volumes the flags that the pod asks for, and so the agent could not know. A mount below such a volume
    begins with the volume's flags and is left alone afterwards: the host, its containers and the agent see the
    same. Either none of them has the flag, or the agent sees it and starts no container (``must_be_loadable``).

    Raises:
        OSError: this process may not mount, or the directory cannot be made.
    """
    directory = state / LIBRARY_DIRECTORY
    directory.mkdir(parents=True, exist_ok=True)
    if str(directory) not in (each.place for each in mounts()):
        mount(directory, directory, "none", BIND)


if __name__ == "__main__":
    try:
        mount_usage(Path(sys.argv[2]), int(sys.argv[1]))
        mount_library(Path(sys.argv[3]))
        for each in sys.argv[4:]:
            mount_small(Path(each), int(sys.argv[1]))
    except OSError as error:
        sys.exit(f"error: {error}")
