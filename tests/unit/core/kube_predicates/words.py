"""What nodes are said to break, in kube-scheduler's words."""

from collections.abc import Mapping

from gputile.core.kube_predicates.predicate_refusal import PredicateRefusal


def said(refusal: PredicateRefusal | None) -> str | None:
    """Return the words of a refusal."""
    return refusal.text if refusal is not None else None


def all_said(refusals: Mapping[str, PredicateRefusal | None]) -> dict[str, str | None]:
    """Return the words of each node's refusal, by its name."""
    return {name: said(refusal) for name, refusal in refusals.items()}
