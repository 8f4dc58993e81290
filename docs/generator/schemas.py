"""Writes a JSON Schema for each type of file or output that gputile decodes or encodes.

The same schemas are written into the package and into docs/reference.
"""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from docs.generator.tables import code, table

from gputile.cli.commands.documents import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
PLACES = (ROOT / "src" / "gputile" / "cli" / "schemas", ROOT / "docs" / "reference" / "schemas")
_RECORDS: Final = {
    "cluster": "gputile.tools.simulator.described_cluster.ClusterDescription",
    "configuration": "gputile.api.config.v1alpha1.Configuration",
    "nodepool": "gputile.tools.nodepool.pool.NodePool",
    "podkinds": "gputile.tools.simulator.pod_kinds.KindsTable",
    "explain": "gputile.tools.simulator.explanation.ExplainAnswer",
    "inspect": "gputile.cli.answers.InspectAnswer",
    "selftest-isolation": "gputile.cli.commands.selftest.IsolationAnswer",
    "simulate": "gputile.cli.answers.SimulateAnswer",
    "status": "gputile.tools.views.status.Installation",
    "top": "gputile.tools.web.top_rows.TopAnswer",
    "version": "gputile.cli.answers.VersionAnswer",
}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def render() -> str:
    """Return the table of the schemas."""
    rows = [(f"[{code(name)}](schemas/{name}.json)", what) for name, what in SCHEMAS.items()]
    return table(("schema", "of"), rows)


def texts() -> dict[Path, str]:
    """Return the text that each file should have according to the code."""
    written = {
        name: json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n" for name in SCHEMAS
    }
    return {place / f"{name}.json": text for place in PLACES for name, text in written.items()}


def outdated() -> list[Path]:
    """Return the files that differ from the code, and the files of unknown schemas."""
    found = {path for place in PLACES for path in place.glob("*.json")}
    wanted = texts()
    stale = [
        path
        for path, text in wanted.items()
        if path not in found or path.read_text(encoding="utf-8") != text
    ]
    return sorted([*stale, *(found - wanted.keys())])


def rewrite() -> None:
    """Update the files."""
    for path in outdated():
        path.unlink(missing_ok=True)
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def schema_of(name: str) -> dict[str, Any]:
    """Return a schema. The description of each type is the first sentence of its docstring."""
    module, _, record_name = _RECORDS[name].rpartition(".")
    record = getattr(import_module(module), record_name)
    kind: Any = record
    (root,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    for part in parts.values():
        if "description" in part:
            part["description"] = _first_sentence(part["description"])
    head = {"$schema": DRAFT, "title": f"gputile {name}", "description": SCHEMAS[name]}
    return {**head, **root, "$defs": {key: _with_their_end(parts[key]) for key in sorted(parts)}}


def _with_their_end(part: Any) -> Any:
    r"""Replace `\Z` at the end of patterns, which only Python supports, by `$`."""
    if isinstance(part, list):
        return [_with_their_end(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: re.sub(r"\\Z$", "$", value)
        if key == "pattern" and isinstance(value, str)
        else _with_their_end(value)
        for key, value in part.items()
    }


def _first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring.

    The other sentences describe fields by their names in Python, which are not the names in JSON.
    """
    return re.split(r"(?<=\.)\s|;", docstring)[0].replace("``", "`").rstrip(".") + "."
