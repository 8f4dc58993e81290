"""Plays the kubelets of simulated nodes: bound pods run, and pods that are deleted go."""

import threading
from types import TracebackType
from typing import Any, Self

import httpx2 as httpx

from tests.localcluster.client import STRATEGIC_PATCH, Api, ApiError
from tests.localcluster.nodes import SimulatedNodes, now

INTERVAL_S = 0.5


class PlayedKubelets:
    """Reports what the kubelets of all nodes would, until it is closed. Nothing runs in fact."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._nodes = SimulatedNodes(api)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                self._look()
            except (ApiError, httpx.HTTPError):
                continue  # an API server that ends, or a pod that somebody else has changed: look again

    def _look(self) -> None:
        for pod in self._api.get("/api/v1/pods")["items"]:
            if pod["spec"].get("nodeName"):
                self._serve(pod)

    def _serve(self, pod: dict[str, Any]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            self._nodes.delete_pod_now(namespace, name)
        elif pod["status"].get("phase") == "Pending":
            self._api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", _running(pod), STRATEGIC_PATCH)


def _running(pod: dict[str, Any]) -> dict[str, Any]:
    moment = now()
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": moment}
        for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    ]
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": "",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": moment}},
        }
        for each in pod["spec"]["containers"]
    ]
    status = {"phase": "Running", "startTime": moment, "conditions": conditions, "containerStatuses": containers}
    return {"status": status}
