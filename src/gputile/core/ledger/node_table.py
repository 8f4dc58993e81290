"""The nodes in rows of arrays, and what bookings take of them counted there.

It knows neither pods nor events: the ledger says which booking is counted and which no more.
"""

from collections.abc import Collection, Iterator

from gputile.core.ledger.booking import Booking
from gputile.core.ledger.node_arrays import MIXED_GROUPS, NO_GROUP, NodeArrays
from gputile.core.ledger.node_info import NodeInfo, ServingMode


class NodeTable:
    """One row a node; rows of nodes that are gone are used again."""

    def __init__(self) -> None:
        self.columns = NodeArrays()
        self.row_of: dict[str, int] = {}
        self._facts: list[NodeInfo | None] = [None] * self.columns.rows
        self._position: list[dict[str, int]] = [{} for _ in range(self.columns.rows)]  # row -> card UUID -> column
        self._free_rows: list[int] = list(range(self.columns.rows - 1, -1, -1))
        self._groups: dict[str, int] = {}
        self._last_group = NO_GROUP

    # -- nodes

    def put(self, facts: NodeInfo) -> int | None:
        """Write down a node as if nothing were booked on it; return its row, None where nothing of it has changed."""
        row = self.row_of.get(facts.name)
        if row is not None and self._facts[row] == facts:
            return None
        if row is None:
            row = self.row_of[facts.name] = self._new_row()
        cards = facts.inventory.cards
        self.columns.grow(self.columns.rows, len(cards))
        self._facts[row] = facts
        self._position[row] = {card.uuid: i for i, card in enumerate(cards)}
        columns = self.columns
        columns.clear(row)
        columns.service[row] = facts.service
        columns.slots[row] = facts.slots
        columns.unit[row] = facts.unit_mib
        columns.spread[row] = facts.placement == "spread"
        columns.grouped[row] = facts.grouped
        columns.packed[row] = facts.placement == "packing"
        columns.cpu[row] = facts.cpu
        for i, card in enumerate(cards):
            columns.total[row, i] = facts.card_total(i)
            columns.usable[row, i] = card.healthy
        return row

    def drop(self, name: str) -> int | None:
        """Forget a node; return the row that it was in."""
        row = self.row_of.pop(name, None)
        if row is not None:
            self.columns.clear(row)
            self._facts[row], self._position[row] = None, {}
            self._free_rows.append(row)
        return row

    def close(self, row: int, *, closed: bool) -> None:
        """Let a node take nothing, or again what it serves.

        A node that serves nothing of gputile's stays as it is: what is wrong with it is the better reason, and cards
        that another device plugin hands out are known to nobody but it.
        """
        facts = self._facts[row]
        if facts is not None:
            self.columns.service[row] = ServingMode.CLOSED if closed and facts.service.closes else facts.service

    def _new_row(self) -> int:
        if not self._free_rows:
            old = self.columns.rows
            self.columns.grow(old + 1, self.columns.cards)
            self._free_rows = list(range(self.columns.rows - 1, old - 1, -1))
            self._facts += [None] * (self.columns.rows - old)
            self._position += [{} for _ in range(self.columns.rows - old)]
        return self._free_rows.pop()

    # -- what is booked

    def take(self, row: int, booking: Booking) -> bool:
        """Count a booking on the node in ``row``; return ``knows_cards``."""
        columns, position = self.columns, self._position[row]
        group, known = self._group(booking.trust_group), booking.allocation is not None
        replicas = self._replicas(row)
        columns.cpu[row] -= booking.cpu
        for share in booking.cards:
            column = position.get(share.uuid)
            if column is None:
                known = False
                continue
            mib, percent = booking.takes(share, columns.total[row, column], replicas)
            columns.used[row, column] += mib
            columns.percent[row, column] += percent
            columns.pods[row, column] += 1
            held = columns.group[row, column]
            if held == NO_GROUP:
                columns.group[row, column] = group
            elif held != group:
                columns.group[row, column] = MIXED_GROUPS
        return known

    def give_back(self, row: int, booking: Booking, others: Collection[Booking]) -> bool:
        """Undo ``take``; ``others`` are the bookings that stay on the node. Return ``knows_cards``."""
        columns, position = self.columns, self._position[row]
        known, replicas = booking.allocation is not None, self._replicas(row)
        columns.cpu[row] += booking.cpu
        for share in booking.cards:
            column = position.get(share.uuid)
            if column is None:
                known = False
                continue
            mib, percent = booking.takes(share, columns.total[row, column], replicas)
            columns.used[row, column] -= mib
            columns.percent[row, column] -= percent
            columns.pods[row, column] -= 1
            if columns.pods[row, column] == 0:
                columns.group[row, column] = NO_GROUP
            elif columns.group[row, column] == MIXED_GROUPS:
                groups = {self._group(other.trust_group) for other in others if other.on_card(share.uuid)}
                columns.group[row, column] = groups.pop() if len(groups) == 1 else MIXED_GROUPS
        return known

    def _replicas(self, row: int) -> int:
        facts = self._facts[row]
        return facts.replicas if facts is not None else 0

    def _group(self, name: str) -> int:
        number = self._groups.get(name)
        if number is None:
            # No number is given a second time: scores that were computed with one of before match nothing.
            number = self._groups[name] = self._last_group = self._last_group + 1
        return number

    @property
    def groups(self) -> int:
        """How many trust groups have a number."""
        return len(self._groups)

    def keep_groups(self, names: Collection[str]) -> None:
        """Forget the numbers of all other trust groups; they hold nothing."""
        self._groups = {name: number for name, number in self._groups.items() if name in names}

    # -- questions

    def facts(self, row: int) -> NodeInfo | None:
        """Return what the node in a row says of itself, None for an empty row."""
        return self._facts[row]

    def nodes(self) -> Iterator[tuple[int, NodeInfo]]:
        """Yield the rows in use, by the nodes' names."""
        for name in sorted(self.row_of):
            row = self.row_of[name]
            facts = self._facts[row]
            if facts is not None:
                yield row, facts

    def knows_cards(self, row: int, booking: Booking) -> bool:
        """Return whether a booking names its cards, and the node in ``row`` has them all."""
        position = self._position[row]
        return booking.allocation is not None and all(share.uuid in position for share in booking.cards)

    def group_number(self, name: str) -> int:
        """Return the number that stands for a trust group in ``columns.group``; 0 for one that holds nothing yet."""
        return self._groups.get(name, NO_GROUP)
