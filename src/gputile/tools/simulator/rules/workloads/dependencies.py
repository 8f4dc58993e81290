"""Checks which Jobs of a JobSet wait for others of it (pkg/webhooks/jobset_webhook.go of JobSet)."""

from collections.abc import Iterator
from typing import Any, Final

from gputile.api.wording import kind_of, shown
from gputile.tools.simulator.documents.paths import entries
from gputile.tools.simulator.rules.values.fields import Broken, Json
from gputile.tools.simulator.rules.values.numbers import one_of

_KIND: Final = "JobSet"
_COMPLETE: Final = "Complete"
_STATES: Final = (_COMPLETE, "Ready")
_JOBS: Final = "spec.replicatedJobs"


def broken_dependencies(kind: str, body: Json) -> Iterator[Broken]:
    """Yield which Jobs of a JobSet wait for what never comes, or in another way than the JobSet takes."""
    if kind != _KIND:
        return
    before: set[Any] = set()
    for i, job in entries(_at(body, "spec").get("replicatedJobs")):
        written = _at(job, "").get("dependsOn")
        path = f"{_JOBS}[{i}].dependsOn"
        if written is not None and not isinstance(written, list):
            yield path, f"must be a list, is {kind_of(written)}"
        elif written and _at(_at(body, "spec"), "startupPolicy").get("startupPolicyOrder") == "InOrder":
            yield path, "Forbidden: it cannot be set where startupPolicy says InOrder"
        for j, each in enumerate(written if isinstance(written, list) else ()):
            name, state = (_at(each, "").get(field) for field in ("name", "status"))
            if not isinstance(name, str) or name not in before:
                rule = "names no replicatedJob that comes before this one, so it would never start"
                yield f"{path}[{j}].name", f"Invalid value: {shown(str(name))}: {rule}"
            yield from one_of(f"{path}[{j}].status", str(state), _STATES)
        before.add(_at(job, "").get("name"))


def awaits_completion(kind: str, body: Json) -> bool:
    """Return whether some Jobs of a valid JobSet start when others have completed."""
    jobs = (job for _, job in entries(_at(body, "spec").get("replicatedJobs"))) if kind == _KIND else ()
    return any(each["status"] == _COMPLETE for job in jobs for each in job.get("dependsOn") or ())


def _at(value: Any, field: str) -> Json:
    """Return the mapping at a field, or with "" the value itself; {} where there is none."""
    found = value.get(field) if field and isinstance(value, dict) else value
    return found if isinstance(found, dict) else {}
