"""The command lines of the control plane's programs."""

from pathlib import Path

from tests.localcluster.certificates import KeyPair
from tests.localcluster.ports import LOOPBACK

# Nodes without a kubelet send no heartbeat: a day passes before one is found missing.
NODE_GRACE = "24h"


def etcd(program: Path, data: Path, port: int, peer_port: int) -> list[str]:
    """Return the command of an etcd that does not wait for the disk: nothing here outlives a power cut."""
    peer = f"http://{LOOPBACK}:{peer_port}"
    return [
        str(program),
        f"--data-dir={data}",
        f"--listen-client-urls=http://{LOOPBACK}:{port}",
        f"--advertise-client-urls=http://{LOOPBACK}:{port}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--heartbeat-interval=10",
        "--election-timeout=100",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]


def apiserver(
    program: Path,
    *,
    port: int,
    etcd_port: int,
    authority: Path,
    serving: KeyPair,
    kubelet_client: KeyPair,
    service_account_key: Path,
) -> list[str]:
    """Return the command of a kube-apiserver with the authorisation and admission of an ordinary cluster."""
    return [
        str(program),
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--client-ca-file={authority}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--kubelet-client-certificate={kubelet_client.certificate}",
        f"--kubelet-client-key={kubelet_client.key}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={service_account_key}",
        f"--service-account-signing-key-file={service_account_key}",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]


def controller_manager(program: Path, *, kubeconfig: Path, authority: Path, service_account_key: Path) -> list[str]:
    """Return the command of a kube-controller-manager that leaves nodes without a kubelet Ready."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        f"--root-ca-file={authority}",
        f"--service-account-private-key-file={service_account_key}",
        f"--node-monitor-grace-period={NODE_GRACE}",
    ]


def scheduler(program: Path, *, configuration: Path, port: int) -> list[str]:
    """Return the command of a kube-scheduler, which serves its health and metrics at ``port``."""
    return [str(program), f"--config={configuration}", f"--bind-address={LOOPBACK}", f"--secure-port={port}"]
