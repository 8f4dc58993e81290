"""A Kubernetes control plane for as long as a ``with`` block lasts."""

import ipaddress
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, Unpack

import grpc
import httpx2 as httpx

from tests.localcluster import binaries, commands
from tests.localcluster.client import Api, ApiError, health_check
from tests.localcluster.commands import SchedulerOptions, scheduler_configuration
from tests.localcluster.identities import ADMIN_GROUPS, Authority, KeyPair, Users, write_key
from tests.localcluster.machine import LOOPBACK, Scratch, accepts, free_ports
from tests.localcluster.nodes import SimulatedNodes
from tests.localcluster.processes import PATIENCE_S, Process, ProcessFailed

SERVICE_HOSTS = (LOOPBACK, "localhost", "kubernetes.default.svc")
SERVICES = "10.96.0.0/16"


class KubectlFailed(RuntimeError):
    """A kubectl command exited with an error; the message is what it wrote."""


class ControlPlane:
    """etcd, kube-apiserver and kube-controller-manager on free loopback ports, in a temporary directory.

    Entering the context starts them; leaving it kills them and whatever ``start_process`` and ``start_scheduler``
    started, and removes the directory. ``apiserver_arguments`` are added to the API server's;
    ``services`` is the range of the Services' addresses.
    """

    def __init__(
        self,
        programs: Mapping[str, Path] | None = None,
        *,
        apiserver_arguments: Sequence[str] = (),
        services: str = SERVICES,
    ) -> None:
        self.programs = programs if programs is not None else binaries.find()
        self._apiserver_arguments = apiserver_arguments
        self._services = ipaddress.ip_network(services)
        self.processes: dict[str, Process] = {}
        self._api: Api | None = None

    def __enter__(self) -> Self:
        self._scratch = Scratch()
        self.directory = self._scratch.path
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        etcd_port, peer_port, port = free_ports(3)
        self.url = f"https://{LOOPBACK}:{port}"
        etcd = commands.etcd(self.programs["etcd"], self.directory / "etcd", etcd_port, peer_port)
        self.start_process("etcd", etcd, ready=lambda: accepts(etcd_port))
        self.authority = Authority(self.directory)
        self.ca = self.authority.certificate
        self.service_account_key = self.directory / "service-account.key"
        write_key(self.service_account_key)
        self._users = Users(self.authority, self.url)
        self.api = self._api = Api(self.url, str(self.ca), self.identity("admin"))
        serving = self.authority.server("apiserver", (*SERVICE_HOSTS, str(self._services[1])))
        apiserver = commands.apiserver(
            self.programs["kube-apiserver"],
            port=port,
            etcd_port=etcd_port,
            authority=self.ca,
            serving=serving,
            kubelet_client=self.identity("admin"),
            service_account_key=self.service_account_key,
        )
        apiserver += [f"--service-cluster-ip-range={self._services}", *self._apiserver_arguments]
        self.start_process("kube-apiserver", apiserver, ready=self.api.healthy)
        controller = commands.controller_manager(
            self.programs["kube-controller-manager"],
            kubeconfig=self.kubeconfig("system:kube-controller-manager", ADMIN_GROUPS),
            authority=self.ca,
            service_account_key=self.service_account_key,
        )
        self.start_process("kube-controller-manager", controller)
        self.wait(lambda: bool(self.api.get("/api/v1/namespaces/default")), "the namespace default")
        self._create_service_account("default")
        self.nodes = SimulatedNodes(self.api)

    def _create_service_account(self, namespace: str) -> None:
        """Create what pods need to be admitted, rather than wait for the controller-manager to do so."""
        try:
            self.api.post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        except ApiError as error:
            if error.status != httpx.codes.CONFLICT:
                raise

    def create_namespace(self, name: str) -> str:
        """Create a namespace that pods can be created in at once, and return its name."""
        self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self._create_service_account(name)
        return name

    def identity(self, user: str, groups: Sequence[str] | None = None) -> KeyPair:
        """Return a client certificate of ``user``; ``admin`` may do everything unless groups are given."""
        return self._users.identity(user, groups)

    def kubeconfig(self, user: str = "admin", groups: Sequence[str] | None = None) -> Path:
        """Return the path of a kubeconfig of ``user``, with everything embedded."""
        return self._users.kubeconfig(user, groups)

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl as admin and return what it prints.

        Raises:
            KubectlFailed: it exited with an error.
        """
        own = [f"--kubeconfig={self.kubeconfig()}", f"--cache-dir={self.directory / 'kubectl'}"]
        command = [str(self.programs["kubectl"]), *own, *arguments]
        done = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def start_scheduler(
        self, extender_url: str | None = None, *, name: str = "kube-scheduler", **options: Unpack[SchedulerOptions]
    ) -> Process:
        """Start a kube-scheduler that asks the extender at ``extender_url``, and wait until it schedules.

        ``name`` is the process's: give each of several its own. With ``lease_seconds`` they elect a leader, and the
        wait is only for health.
        """
        kubeconfig = self.kubeconfig("system:kube-scheduler")
        configuration = scheduler_configuration(kubeconfig, extender_url, options)
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(configuration, indent=2))
        (port,) = free_ports(1)
        command = commands.scheduler(self.programs["kube-scheduler"], configuration=path, port=port)
        health = f"https://{LOOPBACK}:{port}"  # /readyz came with 1.31
        with health_check(f"{health}/readyz", f"{health}/healthz") as ready:
            return self.start_process(name, command, ready=ready)

    def start_process(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        ready: Callable[[], bool] | None = None,
        environment: Mapping[str, str] | None = None,
        timeout: float = PATIENCE_S,
    ) -> Process:
        """Start any program that ends with the control plane, its log in the directory; wait until it is ``ready``.

        Raises:
            ProcessFailed: it ended or was not ready in time, or a process of that name runs.
        """
        if name in self.processes and self.processes[name].alive:
            raise ProcessFailed(f"a process named {name} runs already")
        process = Process(name, command, self.directory / f"{name}.log", environment)
        process.start()
        self.processes[name] = process
        if ready is not None:
            process.wait_ready(ready, timeout)
        return process

    def wait(self, check: Callable[[], bool], what: str, timeout: float = PATIENCE_S, interval: float = 0.05) -> None:
        """Wait until ``check`` holds; while what it asks refuses or does not answer, it does not.

        Raises:
            TimeoutError: it did not within ``timeout`` seconds; says ``what`` was waited for.
        """
        deadline = time.monotonic() + timeout
        while True:
            problem: Exception | None = None
            try:
                if check():
                    return
            except (ApiError, httpx.HTTPError, grpc.RpcError) as error:
                problem = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"after {timeout:g} s still waiting for {what}") from problem
            time.sleep(interval)

    def close(self) -> None:
        """Kill everything, the latest started first (nothing here is worth a graceful end), and remove the files."""
        if self._api is not None:
            self._api.close()
        for process in reversed(self.processes.values()):
            process.kill()
        self.processes.clear()
        self._scratch.remove()
