"""One node, frozen: what the scalar rules of placement, the explanations and the tables look at."""

from dataclasses import dataclass

from gputile.core.devices.inventory import Card
from gputile.core.ledger.ledger import Ledger
from gputile.core.ledger.node_arrays import NO_GROUP
from gputile.core.ledger.node_info import NodeInfo, ServingMode


@dataclass(frozen=True, slots=True)
class CardState:
    """A card and what is booked on it: MiB, percent of compute, pods, and the number of their trust group."""

    card: Card
    total: int
    used: int
    percent: int
    pods: int
    group: int

    @property
    def free(self) -> int:
        """MiB that can still be given away; never negative, whatever the annotations claim."""
        return max(0, self.total - self.used)

    @property
    def held(self) -> int:
        """MiB in use as far as the card has them: what scores count, so that a lie about one card stays its own."""
        return min(self.used, self.total)

    @property
    def empty(self) -> bool:
        """Whether nothing is booked on the card."""
        return self.pods == 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node and its cards. ``closed_by`` names the pods on cards nobody knows that close the node."""

    facts: NodeInfo
    service: ServingMode
    cards: tuple[CardState, ...]
    closed_by: tuple[str, ...] = ()

    @property
    def spread(self) -> bool:
        """Whether pods go to the less used card."""
        return self.facts.placement == "spread"


def node_state(ledger: Ledger, row: int, facts: NodeInfo, without: frozenset[str] = frozenset()) -> NodeState:
    """Return the state of the node in ``row``, as if the pods with the UIDs ``without`` were gone."""
    columns = ledger.columns
    gone = [b for b in ledger.on_node(facts.name) if b.uid in without] if without else []
    cards = []
    for i, card in enumerate(facts.inventory.cards):
        total = int(columns.total[row, i])
        freed = [b.takes(share, total, facts.replicas) for b in gone for share in b.cards if share.uuid == card.uuid]
        pods, group = int(columns.pods[row, i]) - len(freed), int(columns.group[row, i])
        if freed:
            left = {b.trust_group for b in ledger.on_card(facts.name, card.uuid) if b.uid not in without}
            group = ledger.group_number(left.pop()) if len(left) == 1 else (group if left else NO_GROUP)
        cards.append(
            CardState(
                card=card,
                total=total,
                used=int(columns.used[row, i]) - sum(mib for mib, _ in freed),
                percent=int(columns.percent[row, i]) - sum(percent for _, percent in freed),
                pods=pods,
                group=group,
            )
        )
    closed = columns.service[row] == ServingMode.CLOSED
    closed_by = [b.key for b in ledger.unplaced(facts.name) if b.uid not in without] if closed else []
    return NodeState(
        facts=facts,
        service=ServingMode.CLOSED if closed_by else facts.service,
        cards=tuple(cards),
        closed_by=tuple(closed_by),
    )
