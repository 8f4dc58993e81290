"""A network for the pods of a cluster on this machine: a bridge, and the address at which pods reach the API server.

All nodes share the machine's network, and so do their pods: each has an address on one bridge, given by the CNI plugins
`bridge` and `host-local`. There is no kube-proxy and no DNS: of the Services only ``kubernetes`` leads somewhere, by a
forwarder, and the API server asks webhooks at the addresses of their pods (``API_SERVER``). Nothing enforces
NetworkPolicies.
"""

import ipaddress
import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.localcluster import forwarder
from tests.localcluster.binaries import debian_program
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.gomodule import ComponentMissing
from tests.localcluster.machine import Scratch

PREFIX = "gputile-net-"
API_SERVER = ("--enable-aggregator-routing=true",)
HTTPS = 443
_RANGE = ipaddress.IPv4Network("100.64.0.0/10")  # RFC 6598: addresses that are nobody's on the Internet
_BLOCK = 20  # bits of the prefix


class PodNetwork:
    """The network, for as long as the ``with`` block lasts; ``programs`` are those of ``binaries.NETWORK``.

    ``services`` is the range of the Services' addresses, which the control plane is to be told. Addresses of pods are
    kept in ``directory``, so that a node may be restarted.
    """

    def __init__(self, programs: Mapping[str, Path]) -> None:
        self._programs = programs

    def __enter__(self) -> Self:
        """Make the bridge.

        Raises:
            ComponentMissing: this machine does not let us.
        """
        self._scratch = Scratch(PREFIX, _undo)
        self.directory = self._scratch.path
        self.bridge = _bridge_of(self.directory)
        pods, services = _free_block().subnets(prefixlen_diff=1)
        self._pods, self.services = pods, str(services)
        self.api_server = str(services[1])  # what Kubernetes gives the Service "kubernetes"
        try:
            _ip("link", "add", self.bridge, "type", "bridge")
            for address in (f"{pods[1]}/{pods.prefixlen}", f"{self.api_server}/32"):
                _ip("address", "add", address, "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
        except BaseException:
            self._scratch.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.remove()

    @property
    def plugins(self) -> Path:
        """The directory with the CNI plugins."""
        return self._programs["bridge"].parent

    def configuration(self) -> str:
        """Return the list of plugins for a node's container runtime."""
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": str(self._pods), "gateway": str(self._pods[1])}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.directory / "addresses"),
        }
        bridge = {"type": "bridge", "bridge": self.bridge, "ipam": addresses}
        return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})

    def lead_to(self, plane: ControlPlane) -> None:
        """Lead the Service ``kubernetes`` to the API server of ``plane``, as long as that lives."""
        target = plane.url.rpartition(":")[2]
        command = [sys.executable, "-I", "-S", forwarder.__file__, self.api_server, str(HTTPS), target]
        process = plane.start_process("kubernetes-service", command)
        process.wait_ready(lambda: _accepts(self.api_server))


def _accepts(address: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex((address, HTTPS)) == 0


def _bridge_of(directory: Path) -> str:
    return f"gt-{directory.name.removeprefix(PREFIX)}"


def _free_block() -> ipaddress.IPv4Network:
    """Return a block of addresses none of which this machine has: other runs have others."""
    taken = [
        ipaddress.IPv4Address(address["local"])
        for interface in json.loads(_ip("-json", "-4", "address"))
        for address in interface["addr_info"]
    ]
    for block in _RANGE.subnets(new_prefix=_BLOCK):
        if not any(address in block for address in taken):
            return block
    raise ComponentMissing(f"all of {_RANGE} is in use on this machine")


def _undo(directory: Path) -> None:
    subprocess.run([_program(), "link", "delete", _bridge_of(directory)], capture_output=True, check=False)


def _program() -> Path:
    return debian_program("ip", "iproute2")


def _ip(*arguments: str) -> str:
    done = subprocess.run([_program(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ComponentMissing(f"this machine gives pods no network: ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
