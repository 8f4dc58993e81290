"""Notes on what was read: each once, with all objects that it is about."""

from gputile.tools.simulator.manifests import Note, Origin, told_together


def origin(name: str, file: str = "a.yaml", document: int = 1) -> Origin:
    return Origin(file, document, 0, "Pod", name)


def test_what_is_said_of_several_objects_is_said_once() -> None:
    notes = [Note("old", origin("p")), Note("odd", origin("p")), Note("old", origin("q", document=2)), Note("free")]
    assert told_together(notes) == ["a.yaml: Pod/p, Pod/q: old", "a.yaml, document 1: Pod/p: odd", "free"]


def test_files_are_told_apart_and_many_objects_are_counted() -> None:
    notes = [Note("old", origin(f"p{number}")) for number in range(7)] + [Note("old", origin("p", "b.yaml"))]
    assert told_together(notes) == [
        "a.yaml: Pod/p0, Pod/p1, Pod/p2, Pod/p3, Pod/p4 and 2 more: old",
        "b.yaml, document 1: Pod/p: old",
    ]
    assert told_together([Note("same"), Note("same")]) == ["same"]
