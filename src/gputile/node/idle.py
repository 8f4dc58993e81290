"""Waits until the node has a GPU, and then replaces its own process by the given command.

``python -m gputile.node.idle ROOT PORT CLEANUP COMMAND...``

The DaemonSet has a pod on every node, because no label reliably shows which nodes have GPUs. On a
node without a GPU, only this process runs in the pod. It looks for GPUs in /sys and /dev twice a
minute, and answers the kubelet's probes. The kernel lists a GPU there even if no driver is
installed. This module must import almost nothing, so that the process needs only 10 MiB of memory.

``CLEANUP`` is a command as a JSON list. The command removes what an earlier agent published about
GPUs that are no longer in the node. It is repeated until it succeeds, and probes are not answered
while it runs. An empty list means no command.
"""

# Importing pathlib would increase the memory of this process by a tenth.
# ruff: noqa: PTH110, PTH118, PTH119, PTH123, PTH208
import json
import os
import signal
import socket
import sys
import time

_VENDOR = b"0x10de"  # NVIDIA, in the PCI ID registry
_DISPLAY = b"0x03"  # PCI base class of display and 3D controllers. A GPU's audio device has 0x04.
_PASSED_THROUGH = "vfio-pci"  # the driver of devices that are passed to a virtual machine


def gpu_evidence(root: str = "/") -> str | None:
    """Return what shows that the node has a GPU, such as a PCI device, or None without a GPU.

    ``root`` is the directory that contains sys and dev. A GPU without a driver counts too, because
    the agent must report that the driver is missing (L1). The GPUs of WSL and of a Tegra are not on
    the PCI bus, so the function also checks other files.
    """
    devices = os.path.join(root, "sys/bus/pci/devices")
    for name in _names(devices):
        device = os.path.join(devices, name)
        ours = _read(device, "vendor") == _VENDOR and _read(device, "class").startswith(_DISPLAY)
        driver = os.path.basename(os.path.realpath(os.path.join(device, "driver")))
        if ours and driver != _PASSED_THROUGH:
            return f"PCI device {name}"
    for path in ("dev/nvidiactl", "sys/class/misc/dxg"):
        if os.path.exists(os.path.join(root, path)):
            return f"/{path}"
    if _read(root, "sys/devices/soc0/family").lower().startswith(b"tegra"):
        return "a Tegra"
    return None


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _read(directory: str, name: str) -> bytes:
    try:
        with open(os.path.join(directory, name), "rb", buffering=0) as file:
            return file.read(4096).strip()
    except OSError:
        return b""


CHECK_EVERY_S = 30.0
_BODY = (
    b"# HELP gputile_agent_resting Whether the agent waits because its node has no GPU.\n"
    b"# TYPE gputile_agent_resting gauge\ngputile_agent_resting 1\n"
)
_ANSWER = (
    b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_BODY), _BODY)
)


def listen(port: int) -> socket.socket:
    """Return a listening socket. It accepts a connection when data arrives, or after a second."""
    both = socket.has_dualstack_ipv6()  # a cluster may have only IPv6
    family = socket.AF_INET6 if both else socket.AF_INET
    listening = socket.create_server(("", port), family=family, backlog=64, dualstack_ipv6=both)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
    return listening


def answer(listening: socket.socket, until: float) -> None:
    """Answer each request with the metrics of an idle agent until the monotonic time ``until``."""
    while (left := until - time.monotonic()) > 0:
        listening.settimeout(left)
        try:
            connection, _ = listening.accept()
        except OSError:
            continue
        with connection:
            connection.setblocking(False)
            try:
                connection.recv(4096)
                connection.send(_ANSWER)
            except OSError:
                pass


def main() -> None:
    root = sys.argv[1]
    port = int(sys.argv[2])
    cleanup = json.loads(sys.argv[3])
    command = sys.argv[4:]
    # Without a handler, process 1 of a container ignores these signals.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    if gpu_evidence(root) is None:
        _log(f"no NVIDIA GPU on this node: waiting, with a check every {CHECK_EVERY_S:g} s")
        listening = listen(port) if port else None
        while (found := gpu_evidence(root)) is None:
            if cleanup and not os.spawnv(os.P_WAIT, cleanup[0], cleanup):  # noqa: S606
                cleanup = []
            if listening is None:
                time.sleep(CHECK_EVERY_S)
            else:
                answer(listening, time.monotonic() + CHECK_EVERY_S)
        _log(f"found a GPU: {found}")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
