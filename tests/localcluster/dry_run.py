"""What an API server says of objects, without storing them."""

from typing import Any

from tests.localcluster.client import Api, ApiError
from tests.localcluster.controlplane import ControlPlane

Json = dict[str, Any]
_SERVED: dict[str, dict[str, Json]] = {}  # what an API server serves of each version, by kind


def answer(plane: ControlPlane, namespace: str, body: Json) -> str:
    """Return why the API server does not take an object, "" where it does; nothing is stored."""
    strict = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        plane.api.request("POST", where(plane.api, namespace, body), body, query=strict)
    except ApiError as error:
        return str(error)
    return ""


def where(api: Api, namespace: str, body: Json) -> str:
    """Return the path at which objects of a kind are created; "unknown" stands for a kind that there is not."""
    prefix = f"/apis/{body['apiVersion']}" if "/" in body["apiVersion"] else f"/api/{body['apiVersion']}"
    if prefix not in _SERVED:
        _SERVED[prefix] = {each["kind"]: each for each in api.get(prefix)["resources"] if "/" not in each["name"]}
    resource = _SERVED[prefix].get(body["kind"], {"name": "unknown", "namespaced": True})
    return f"{prefix}{f'/namespaces/{namespace}' if resource['namespaced'] else ''}/{resource['name']}"
