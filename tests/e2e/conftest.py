"""What the tests on a real control plane share."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.localcluster import binaries
from tests.localcluster.admission import RunningWebhook, installed
from tests.localcluster.binaries import components_or_skip, prepare_visibly
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests that share a cluster of pods, single nodes or a control plane: groups run beside each other."""
    for item in items:
        on_node = "node_programs" in getattr(item, "fixturenames", ())
        if on_node:
            item.add_marker("node")
        if HERE / "pods" in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("pods"))
        elif HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("nodes" if on_node else "plane"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is wanted and not cached yet before the first test's clock runs, and visibly."""
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    needed = {
        "control_plane_programs": binaries.CONTROL_PLANE,
        "node_programs": binaries.NODE,
        "network_programs": binaries.NETWORK,
        "autoscaler_programs": binaries.AUTOSCALER,
        "helm_programs": binaries.HELM,
    }
    if not session.config.option.collectonly:
        prepare_visibly(session, *(names for fixture, names in needed.items() if fixture in fixtures))


@pytest.fixture(scope="session")
def control_plane_programs() -> dict[str, Path]:
    """The programs of a control plane."""
    return components_or_skip()


@pytest.fixture(scope="session")
def control_plane(control_plane_programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A control plane for the whole run, without a scheduler: tests start their own, and clean up what they create."""
    with ControlPlane(control_plane_programs) as plane:
        yield plane


@pytest.fixture(scope="module")
def webhook(control_plane: ControlPlane) -> Iterator[RunningWebhook]:
    """The webhook and the policies, with their defaults."""
    with installed(control_plane) as running:
        yield running


@pytest.fixture(scope="session")
def node_programs() -> dict[str, Path]:
    """The programs of a real node: kubelet, containerd and runc."""
    return components_or_skip(binaries.NODE)


@pytest.fixture(scope="session")
def network_programs() -> dict[str, Path]:
    """The programs of a network for pods."""
    return components_or_skip(binaries.NETWORK)


@pytest.fixture(scope="session")
def autoscaler_programs() -> dict[str, Path]:
    """Karpenter with its provider kwok."""
    return components_or_skip(binaries.AUTOSCALER)


@pytest.fixture(scope="session")
def helm_programs() -> dict[str, Path]:
    """Helm, which the tests run by ``tests.chart.helmcli``."""
    return components_or_skip(binaries.HELM)


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; its pods are gone when the test ends."""
    test = request.node.name.partition("[")[0].lower().replace("_", "-")[:50].strip("-")
    with own_namespace(control_plane, f"{test}-{secrets.token_hex(3)}") as name:
        yield name


@contextlib.contextmanager
def own_namespace(control_plane: ControlPlane, name: str) -> Iterator[str]:
    """Give a namespace of that name; its pods are gone at the end, and nothing can make others.

    What else is in it goes some seconds later, which nobody waits for.
    """
    control_plane.create_namespace(name)
    yield name
    control_plane.api.delete(f"/api/v1/namespaces/{name}")
    control_plane.wait(lambda: _takes_nothing(control_plane, name), f"namespace {name} to be closed")
    control_plane.wait(lambda: _has_no_pods(control_plane, name), f"namespace {name} to be without pods")


def _takes_nothing(control_plane: ControlPlane, namespace: str) -> bool:
    """Whether the API server has noticed that a namespace is being deleted: no controller can replace its pods."""
    try:
        path, body = f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "probe"}}
        control_plane.api.request("POST", path, body, query={"dryRun": "All"})
    except ApiError as error:
        return error.status in (403, 404)
    return False


def _has_no_pods(control_plane: ControlPlane, namespace: str) -> bool:
    """End the pods of a namespace, which no kubelet may serve; whether there are none."""
    control_plane.nodes.delete_all_pods_now(namespace)
    return not control_plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]


@pytest.fixture
def no_nodes(control_plane: ControlPlane) -> Iterator[None]:
    """Remove the nodes that the test creates."""
    yield
    control_plane.nodes.delete_all_nodes()
