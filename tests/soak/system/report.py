"""What a run found, for programs (JSON) and for people (Markdown)."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.soak.system.memory import FACTOR, ROOM_MIB, WARM_AFTER_S
from tests.soak.system.run import AGREE_WITHIN_S, GANG_WHOLE_WITHIN_S, Run


def write(run: Run, directory: Path, interrupted: bool) -> Path:
    """Write report.json and report.md; return the path of the latter."""
    directory.mkdir(parents=True, exist_ok=True)
    document = as_document(run, interrupted)
    (directory / "report.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    path = directory / "report.md"
    path.write_text(as_markdown(document), encoding="utf-8")
    return path


def as_document(run: Run, interrupted: bool) -> dict[str, Any]:
    """Return everything that was found."""
    findings, options = run.findings, run.options
    return {
        "seed": options.seed,
        "minutes": round(findings.now() / 60, 1),
        "interrupted": interrupted,
        "pods": {key.removeprefix("pods "): n for key, n in sorted(findings.counts.items()) if key.startswith("pods ")},
        "counts": {key: n for key, n in sorted(findings.counts.items()) if not key.startswith("pods ")},
        "faults": dict(sorted(Counter(each.kind for each in run.done).items())),
        "done": [vars(each) for each in run.done],
        "longest": {what: {"seconds": round(s, 1), "which": which} for what, (s, which) in findings.longest.items()},
        "memory": run.memory.lives(),
        "violations": [vars(each) for each in findings.violations],
    }


def as_markdown(document: dict[str, Any]) -> str:
    """Return the same as a page."""
    command = f"python -m tests.soak system --seed {document['seed']}"
    lines = [f"# Soak of the whole system, seed {document['seed']}", "", f"`{command}`, {document['minutes']} minutes"]
    lines[-1] += ", interrupted." if document["interrupted"] else "."
    lines += ["", f"**{len(document['violations'])} violations.**"]
    lines += _table("Pods", ("kind or end", "pods"), document["pods"])
    lines += _table("Faults", ("kind", "times"), document["faults"])
    lines += _table("Counts", ("what", "times"), document["counts"])
    longest = {what: f"{each['seconds']} s" for what, each in document["longest"].items()}
    lines += _table("Longest", ("what", "lasted"), longest)
    lines += ["", f"A container may be out of agreement for {AGREE_WITHIN_S:.0f} s, a gang in part for "]
    lines[-1] += f"{GANG_WHOLE_WITHIN_S:.0f} s, faults included."
    lines += ["", "## Memory", "", "MiB (PSS) of the process of each component that lived longest:", ""]
    lines += ["| component | processes | lived, s | warm | at its end | at most |", "|---|---|---|---|---|---|"]
    for name, lives in sorted(document["memory"].items()):
        lived, warm, last, most = max(lives)
        lines.append(f"| {name} | {len(lives)} | {lived:.0f} | {warm:.0f} | {last:.0f} | {most:.0f} |")
    lines += [
        "",
        f"Warm is {WARM_AFTER_S:.0f} s after its start; the bound is {FACTOR} times that and {ROOM_MIB:.0f} MiB.",
    ]
    for each in document["violations"]:
        lines += ["", f"## {each['at']:.0f} s: {each['promise']}", "", each["text"], "", "```", *each["story"], "```"]
    return "\n".join([*lines, ""])


def _table(title: str, heads: tuple[str, str], rows: dict[str, Any]) -> list[str]:
    found = ["", f"## {title}", "", f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    return found + [f"| {key} | {value} |" for key, value in rows.items()]
