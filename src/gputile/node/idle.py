"""Waits for a GPU, and then becomes the given command.

``python -m gputile.node.idle ROOT PORT LEAVE COMMAND...``

The DaemonSet has a pod on every node, since no label says for certain which nodes have GPUs. Where there is none, this
is all that runs: one process of 10 MiB that looks at the PCI bus twice a minute and answers probes. It imports next
to nothing. Whether there is a GPU, with or without a driver, is known by what the kernel shows.

``LEAVE`` is a command in JSON that removes from the node what an agent said of GPUs that are gone; it is run until it
has exited with 0 once. "[]" is none.
"""

# pathlib would be a tenth of the memory of a process that does nothing else:
# ruff: noqa: PTH110, PTH115, PTH118, PTH119, PTH123, PTH208
import json
import os
import signal
import socket
import sys
import time

_VENDOR = b"0x10de"  # NVIDIA, in the PCI ID registry
_DISPLAY = b"0x03"  # PCI base class: display controllers, 3D controllers among them; the GPUs' audio is 0x04
_ELSEWHERE = "vfio-pci"  # the driver of devices that belong to a virtual machine


def gpu_evidence(root: str = "/") -> str | None:
    """Return what shows that there is a GPU, None if nothing does. ``root`` is where /sys, /proc and /dev are.

    A GPU counts by being on the PCI bus: a node whose driver is missing is to say so (L1). A virtual machine of
    Windows (WSL) and a Tegra have no GPU on that bus.
    """
    devices = os.path.join(root, "sys/bus/pci/devices")
    for name in _names(devices):
        device = os.path.join(devices, name)
        ours = _read(device, "vendor") == _VENDOR and _read(device, "class").startswith(_DISPLAY)
        if ours and os.path.basename(_link(os.path.join(device, "driver"))) != _ELSEWHERE:
            return f"PCI device {name}"
    for name in _names(os.path.join(root, "proc/driver/nvidia/gpus")):
        return f"the driver's GPU {name}"
    for path in ("dev/nvidiactl", "sys/class/misc/dxg"):
        if os.path.exists(os.path.join(root, path)):
            return f"/{path}"
    if _read(root, "sys/devices/soc0/family").lower().startswith(b"tegra"):
        return "a Tegra"
    return "a Tegra" if b"nvidia,tegra" in _read(root, "proc/device-tree/compatible") else None


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


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


LOOK_EVERY_S = 30.0
_BODY = (
    b"# HELP gputile_agent_resting Whether the agent rests, since its node has no GPU.\n"
    b"# TYPE gputile_agent_resting gauge\ngputile_agent_resting 1\n"
)
_ANSWER = (
    b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(_BODY), _BODY)
)


def listen(port: int) -> socket.socket:
    """Return a socket that hands over connections only when something was asked on them, or after a second or so."""
    both = socket.has_dualstack_ipv6()  # a cluster may be of IPv6 alone
    family = socket.AF_INET6 if both else socket.AF_INET
    listening = socket.create_server(("", port), family=family, backlog=64, dualstack_ipv6=both)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 1)
    return listening


def answer(listening: socket.socket, until: float) -> None:
    """Answer everybody who asks anything: a resting agent is alive, ready and has one metric."""
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


class Leaving:
    """Runs ``command``, one process at a time, until it has succeeded."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process = 0

    def poll(self) -> None:
        if self._process:
            ended, status = os.waitpid(self._process, os.WNOHANG)
            if not ended:
                return
            self._process = 0
            if status == 0:
                self._command = []
        if self._command:
            self._process = os.posix_spawn(self._command[0], self._command, os.environ)

    def end(self) -> None:
        """Stop it: it would remove what the agent says of the GPU that is there now."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


def main() -> None:
    root, port, leave, command = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
    for number in (signal.SIGTERM, signal.SIGINT):  # process 1 of a container is not ended by them otherwise
        signal.signal(number, lambda *_: os._exit(0))
    if gpu_evidence(root) is None:
        _say(f"no NVIDIA GPU on this node: resting, and looking again every {LOOK_EVERY_S:g} s")
        listening, leaving = listen(port) if port else None, Leaving(leave)
        while (found := gpu_evidence(root)) is None:
            leaving.poll()
            if listening is None:
                time.sleep(LOOK_EVERY_S)
            else:
                answer(listening, time.monotonic() + LOOK_EVERY_S)
        leaving.end()
        _say(f"there is a GPU now: {found}")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
