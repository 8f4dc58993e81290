"""Manifests that break a rule of the API server which concerns one field or a few, and neighbours that it takes.

``api_rules.jsonl`` has one manifest on a line: its kind and what is set in the plain manifest of that kind, or its
whole ``body``, and what is said of it; nothing is said of those that a cluster takes. A real API server was asked about
each, see ``tests/e2e/test_manifests.py``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.manifests import (
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    POD,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    STATEFUL_SET,
    Case,
    Json,
    changed,
)

_PLAIN = (CRON_JOB, DAEMON_SET, DEPLOYMENT, JOB, POD, REPLICA_SET, REPLICATION_CONTROLLER, STATEFUL_SET)
_LINES = Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()


def _manifest(case: Mapping[str, Any]) -> Json:
    if "body" in case:
        whole: Json = case["body"]
        return whole
    (body,) = (plain for plain in _PLAIN if plain["kind"] == case["kind"])
    for path, value in case["set"].items():
        body = changed(body, path, value)
    return body


# An object of each kind without pods whose values are judged, with a little of everything that is.
BESIDE = tuple(map(json.loads, Path(__file__).with_name("objects_beside.jsonl").read_text("utf-8").splitlines()))
_READ = tuple(map(json.loads, _LINES))
BREAKING = tuple(Case(each["name"], _manifest(each), each["said"]) for each in _READ if "said" in each)
TAKEN = tuple(_manifest(each) for each in _READ if "said" not in each)
