"""Of objects with one changed value, the simulator refuses what a real API server refuses, and takes the rest."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.tools.simulator.admission.chain import Admission
from gputile.tools.simulator.cluster.intake import Intake
from gputile.tools.simulator.cluster.workload_pods import expand
from gputile.tools.simulator.documents.manifests import ManifestError, load_manifests
from gputile.tools.simulator.updates.immutable_fields import broken_changes
from tests.e2e.conftest import own_namespace
from tests.immutable_changes import CHANGES, GATED, GATED_CHANGES, STORED, Change
from tests.localcluster.client import ApiError
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.dry_run import answer, where
from tests.manifests import Json, changed
from tests.mutations import RICH_OBJECTS, changed_objects

# A fixed sample: other seeds may find what is known to differ, such as amounts of more than an API server can count.
SEED = 1
COUNT = 400
STORED_IN = "stored-objects"
WITHOUT_GPUTILE = Intake(Admission(Configuration(), enforced=False))


def verdict(directory: Path, body: Json) -> str:
    """Return why the simulator does not take an object into a cluster without gputile, "" where it does."""
    file = directory / "m.json"
    file.write_text(json.dumps(body))
    try:
        expand(load_manifests([str(file)]).manifests, [], WITHOUT_GPUTILE)
    except ManifestError as error:
        return str(error)
    return ""


@pytest.mark.requirement("B4")
def test_the_rich_objects_are_right(control_plane: ControlPlane, tmp_path: Path) -> None:
    said = [(answer(control_plane, "default", body), verdict(tmp_path, body)) for body in RICH_OBJECTS]
    assert said == [("", "")] * len(RICH_OBJECTS)


@pytest.mark.requirement("B4")
def test_a_changed_value_is_judged_as_an_api_server_judges_it(control_plane: ControlPlane, tmp_path: Path) -> None:
    assert differing(control_plane, tmp_path, changed_objects(COUNT, SEED)) == []


def differing(
    plane: ControlPlane, directory: Path, changed: Iterable[tuple[Any, Any, Json]]
) -> list[tuple[str, Any, Any, str, str]]:
    """Return the changes that only one of both refuses: kind, field, value, and what both say.

    What no kubelet starts is refused by one of them.
    """
    found = []
    for path, value, body in changed:
        said = answer(plane, "default", body), verdict(directory, body)
        if bool(said[0]) != bool(said[1]) and (said[0] or "no kubelet" not in said[1]):
            found.append((body["kind"], path, value, *said))
    return found


@pytest.fixture(scope="module")
def stored(control_plane: ControlPlane) -> Iterator[dict[str, Json]]:
    """Objects of ``STORED`` as an API server has them, by their kinds; neither they nor their pods stay."""
    with own_namespace(control_plane, STORED_IN):
        found = {kind: created(control_plane, body) for kind, body in STORED.items()}
        found["gated"] = created(control_plane, GATED, "gated")
        yield found
        for place in (place_of(control_plane, body) for body in found.values()):
            if STORED_IN not in place:  # it is of the cluster, and does not go with the namespace
                control_plane.api.delete(place)


def created(plane: ControlPlane, body: Json, name: str = "immutable") -> Json:
    """Create an object under a name that no other test has, and return how it is stored."""
    named = changed(body, "metadata", {"name": name, "labels": body["metadata"].get("labels", {})})
    found: Json = plane.api.request("POST", where(plane.api, STORED_IN, body), named)
    return found


def place_of(plane: ControlPlane, body: Json) -> str:
    """Return the path of an object that ``created`` has created."""
    return f"{where(plane.api, STORED_IN, body)}/{body['metadata']['name']}"


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_is_judged_as_an_api_server_judges_it(
    control_plane: ControlPlane, stored: dict[str, Json], change: Change
) -> None:
    compare(control_plane, STORED[change.kind], stored[change.kind], change)


def compare(control_plane: ControlPlane, before: Json, body: Json, change: Change) -> None:
    """Have a ``change`` of what was written ``before``, and is stored as ``body``, judged by both."""
    written = changed(before, change.path, change.value)
    written = changed(written, "metadata", {**written["metadata"], "name": body["metadata"]["name"]})
    merged = "application/strategic-merge-patch+json"
    place = place_of(control_plane, body)
    try:
        control_plane.api.request("PATCH", place, written, content_type=merged, query={"dryRun": "All"})
        said = ""
    except ApiError as error:
        said = str(error)
    own = list(broken_changes(change.kind, written, body))
    assert (bool(said), bool(own)) == (change.refused, change.refused), (said, own)


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("change", GATED_CHANGES, ids=str)
def test_a_change_of_a_gated_pod_is_judged_as_an_api_server_judges_it(
    control_plane: ControlPlane, stored: dict[str, Json], change: Change
) -> None:
    compare(control_plane, GATED, stored["gated"], change)
