"""What would have to change so that a pod fits: found by trying it, with the code that decides live (B4)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from gputile.api.well_known import MODE_LABEL, Mode
from gputile.core.devices.request import PERCENT_STEP, Request, RequestKind, Shape
from gputile.core.ledger.booking import Booking
from gputile.core.scheduling.decision import Decision
from gputile.tools.simulator.explanation import NodeReport, Subject

_MOST_NODES_TRIED = 50
_NAMES_SHOWN = 5


class Remedy(msgspec.Struct, frozen=True, rename="camel"):
    """One change that would be enough by itself. ``nodes`` are those where the pod would then fit, as far as named."""

    change: str
    nodes: list[str]


def remedies(subject: Subject, reports: Sequence[NodeReport]) -> list[Remedy]:
    """Return the changes that would make room for a pod that fits nowhere, the smallest first."""
    request = subject.request
    if request is None or any(report.fits for report in reports):
        return []
    open_nodes = [report for report in reports if not report.in_tree]
    found = [
        _smaller(subject, request, open_nodes),
        _departures(subject, request, [report for report in open_nodes if not report.unresolvable]),
        _in_tree([report for report in reports if report.in_tree and not report.gpu]),
        _new_node(request),
    ]
    return [remedy for remedy in found if remedy is not None]


def _smaller(subject: Subject, request: Request, nodes: Sequence[NodeReport]) -> Remedy | None:
    """Find the largest amount that fits now, where less is all that is needed."""
    names, shape = [report.name for report in nodes], request.shape
    if not names:
        return None
    if shape.kind is not RequestKind.SHARED:
        cards = _largest(shape.cards - 1, lambda n: replace(shape, cards=n), subject, request, names)
        return _less(cards, f"{cards and cards[0]} of {shape.kind.value}", subject)
    unit = shape.unit_mib or request.unit_mib
    most = shape.mib // unit - 1
    memory = _largest(most, lambda n: replace(shape, mib=n * unit), subject, request, names)
    if memory is not None:
        total = memory[0] * shape.cards
        return _less(memory, f"{total} units of {unit} MiB{_each(shape)}", subject)
    steps = shape.percent // PERCENT_STEP - 1
    compute = _largest(steps, lambda n: replace(shape, percent=n * PERCENT_STEP), subject, request, names)
    percent = compute[0] * PERCENT_STEP * shape.cards if compute else 0
    return _less(compute, f"{percent} percent of compute{_each(shape)}", subject)


def _less(found: tuple[int, list[str]] | None, asked: str, subject: Subject) -> Remedy | None:
    if found is None:
        return None
    return Remedy(f"pod {subject.pod.key} asks for no more than {asked}", found[1][:_NAMES_SHOWN])


def _each(shape: Shape) -> str:
    return "" if shape.cards == 1 else f" over its {shape.cards} cards"


def _largest(
    most: int, shaped: Callable[[int], Shape], subject: Subject, request: Request, names: Sequence[str]
) -> tuple[int, list[str]] | None:
    """Return the largest amount from 1 to ``most`` that fits, and where; None where not even 1 does."""
    best: tuple[int, list[str]] | None = None
    low, high = 1, most
    while low <= high:  # what fits, fits with less too
        middle = (low + high) // 2
        tried = replace(request, shape=shaped(middle))
        feasible = subject.engine.filter(tried, names).feasible
        if feasible:
            best, low = (middle, feasible), middle + 1
        else:
            high = middle - 1
    return best


def _departures(subject: Subject, request: Request, nodes: Sequence[NodeReport]) -> Remedy | None:
    """Find the node that the fewest pods have to leave, of those the least memory."""
    best: tuple[int, int, str, list[Booking]] | None = None
    for report in nodes[:_MOST_NODES_TRIED]:
        leaving = _fewest(subject, request, report.name)
        if leaving is not None:
            held = sum(share.mib for booking in leaving for share in booking.cards)
            found = (len(leaving), held, report.name, leaving)
            best = found if best is None or found[:2] < best[:2] else best
    if best is None:
        return None
    _, _, name, leaving = best
    verb = "ends, or moves to another node" if len(leaving) == 1 else "end, or move to other nodes"
    noun = "pod" if len(leaving) == 1 else "pods"
    return Remedy(f"{noun} {_listed(booking.key for booking in leaving)} {verb}", [name])


def _fewest(subject: Subject, request: Request, name: str) -> list[Booking] | None:
    """Return few pods of a node without which the request fits it; None where it does not even if all are gone."""
    bookings = sorted(subject.ledger.on_node(name), key=lambda b: (sum(share.mib for share in b.cards), b.key))

    def fits(leaving: Sequence[Booking]) -> bool:
        gone = frozenset(booking.uid for booking in leaving)
        return isinstance(subject.engine.decide(request, name, 0, gone), Decision)

    for booking in bookings:
        if fits([booking]):
            return [booking]
    if not fits(bookings):
        return None
    leaving = list(bookings)
    for booking in reversed(bookings):  # the largest stay where they can
        fewer = [other for other in leaving if other is not booking]
        if fits(fewer):
            leaving = fewer
    return leaving


def _in_tree(nodes: Sequence[NodeReport]) -> Remedy | None:
    """Name the nodes whose GPUs have room, and what else stands against them."""
    if not nodes:
        return None
    reason = nodes[0].in_tree
    alike = [report.name for report in nodes if report.in_tree == reason]
    return Remedy(f'kube-scheduler\'s reason "{reason}" is mended; the GPUs there have room', alike[:_NAMES_SHOWN])


def _new_node(request: Request) -> Remedy:
    """Describe an empty node that would take the pod."""
    shape = request.shape
    cards = "one GPU" if shape.cards == 1 else f"{shape.cards} GPUs"
    if shape.kind is RequestKind.SHARED:
        modes = [Mode.CORE_MEM] if shape.percent else [Mode.CGPU, Mode.SHARE, Mode.MPS]
        unit = shape.unit_mib or request.unit_mib
        cards += f" of {-(-shape.mib // unit)} units of {unit} MiB or more"
    else:
        modes = [Mode.EXCLUSIVE] if shape.kind is RequestKind.WHOLE else [Mode.TOPOLOGY]
    named = " or ".join(f"{MODE_LABEL}={mode.value}" for mode in modes)
    return Remedy(f"a node with {cards} comes, labelled {named}", [])


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    shown = ", ".join(found[:_NAMES_SHOWN])
    return f"{shown} and {len(found) - _NAMES_SHOWN} more" if len(found) > _NAMES_SHOWN else shown
