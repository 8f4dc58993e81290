"""Finds why requests do not fit nodes, and again only for nodes that have changed since."""

from collections import OrderedDict
from dataclasses import dataclass, field

from gputile.core.devices.request import Request, Shape
from gputile.core.placement.fit_refusal import FitRule
from gputile.core.scheduling.placement_engine import PlacementEngine
from gputile.tools.simulator.scheduling.equal_pods import NodeStates

_SHAPES_KEPT = 64


@dataclass(frozen=True, slots=True)
class ToldRefusal:
    """A refusal in words, and the rule behind it."""

    text: str
    rule: FitRule


@dataclass(slots=True)
class _Kept:
    """The answers for one shape, by the node's row, as of a position in the ledger's changes."""

    position: int
    answers: dict[int, ToldRefusal | None] = field(default_factory=dict)


class Refusals:
    """What is said of the nodes that requests do not fit. Nodes that are alike are judged once in a question."""

    def __init__(self, engine: PlacementEngine, states: NodeStates) -> None:
        self._engine = engine
        self._states = states
        self._shapes: OrderedDict[tuple[Shape, int], _Kept] = OrderedDict()

    def question(self, request: Request) -> "Question":
        """Return who answers for a request, until the ledger changes."""
        ledger = self._engine.ledger
        key = request.shape, ledger.group_number(request.shape.trust_group)
        kept = self._shapes.pop(key, None) or _Kept(ledger.changes.position)
        self._shapes[key] = kept
        if len(self._shapes) > _SHAPES_KEPT:
            self._shapes.popitem(last=False)
        changed = ledger.changes.since(kept.position)
        if changed is None:
            kept.answers.clear()
        else:
            for row in changed.tolist():
                kept.answers.pop(row, None)
        kept.position = ledger.changes.position
        return Question(self._engine, self._states, request, kept.answers)


@dataclass(frozen=True, slots=True)
class Question:
    """Why one request does not fit nodes; ``answers`` are those that are known, by the node's row."""

    engine: PlacementEngine
    states: NodeStates
    request: Request
    answers: dict[int, ToldRefusal | None]
    _alike: dict[bytes, ToldRefusal | None] = field(default_factory=dict)

    def refusal(self, name: str) -> ToldRefusal | None:
        """Return why the request does not fit node ``name``, None where it does."""
        row = self.engine.ledger.row_of.get(name)
        if row is None:
            return self._asked(name)
        if row not in self.answers:
            self.answers[row] = self._found(name, row)
        return self.answers[row]

    def _found(self, name: str, row: int) -> ToldRefusal | None:
        info = self.engine.ledger.node_info(row)
        key = self.states.gpus_key(row, info) if info is not None else b""
        if not key:
            return self._asked(name)
        if key not in self._alike:
            self._alike[key] = self._asked(name)
        return self._alike[key]

    def _asked(self, name: str) -> ToldRefusal | None:
        refusal = self.engine.refusal(self.request, name)
        return ToldRefusal(refusal.text, refusal.rule) if refusal is not None else None
