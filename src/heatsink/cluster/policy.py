"""Which slots to move, and why: a pure planner for a Redis or Valkey Cluster.

A node is as busy as its busiest resource: CPU or network, and as busy as its busiest replica. The
planner takes slots from the busiest node and gives them to the coolest, one by one, while this
makes the busier of the two less busy. If several moves help about equally, the planner prefers
moves with fewer bytes, fewer writes and fewer new ranges of slots. A slot that makes up half of its
node's load stays. The other slots leave instead, so that the slot gets the node for itself.

No slot moves without gain. A slot with hardly any load stays: to copy its data would bring nothing.
If the slots that could leave a node would together not make it noticeably less busy, all stay.

Loads are measured with noise, which must not send slots back and forth. So a slot stays if its move
would mostly exchange the roles of two nodes (`GAIN`). If two nodes are both busy, slots go from one
to the other only if one is much busier (`_is_cooler`).

A slot cannot be divided. If one slot alone is busier than the mean node, it sets a *ceiling*: no
move can make the busiest node less busy than this slot.

A node without capacity (`cores` 0) is *drained*: all its slots leave. A node that is nearly full is
*relieved*: slots with much data and little load leave it. As long as a node must be drained or
relieved, nothing else is planned.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import msgspec

from .load import ClusterLoad, NodeLoad, SlotDemand, SlotLoad, demand_of, mean_used
from .rules import SlotRules
from .sizes import ROOM, may_copy
from .slots import as_ranges

HALF = 0.5  # of its node's load: a slot with this much stays, and its neighbours leave
IDLE = 0.02  # of the mean slot's load: a slot with less stays where it is
ALIKE = 0.9  # of the best gain: among such moves, the cheapest wins
GAIN = 0.2  # of a unit's load: its move must make the busier node less busy by at least this
STEP = 0.02  # of the mean load: nodes within one step count as equally busy
RANGE_COST = 64 * 1024  # bytes: a new range of slots counts like so much data to move
TOGETHER = 128  # maximum number of slots that leave a drained or a full node in one piece
PIECES = 4  # a piece is one slot, or at most 1/PIECES of the data that must leave a full node


class SlotMove(msgspec.Struct, frozen=True):
    """Slots that go from one node to another in one migration."""

    slots: tuple[int, ...]
    source: str
    target: str
    size: int
    reason: str
    most: int = 0
    """Upper bound of `size`. Slots that were not measured count with their estimated size."""
    written_s: float = 0.0
    """How many bytes a second clients write to the source."""
    relieves: bool = False
    """Whether the slots leave because the source is nearly full."""


class Ceiling(msgspec.Struct, frozen=True):
    """One slot that is busier than the mean node. No move can help it."""

    slot: int
    node: str
    used: float
    """The share of its node's capacity that the slot uses."""
    ratio: float
    """The best possible ratio of the busiest node to the mean, because of this slot."""
    keys: int
    reads: bool
    """Whether more bytes go out to clients than come in: then it is read more than written."""

    @property
    def words(self) -> str:
        """The ceiling and its cure, for people."""
        remedy = (
            "cache its hottest key in the applications (hs.reads)"
            if self.reads
            else "spread its hottest key (hs.counters for counts, hs.log for appended rows)"
        )
        text = f"slot {self.slot} alone uses {self.used:.1%} of its node"
        return f"{text}, {self.ratio:.2f} × the mean. A slot cannot be divided: {remedy}"


class Plan(msgspec.Struct, frozen=True):
    """What to move. `before` and `after` are the busiest node's load ÷ the mean."""

    before: float
    after: float
    moves: tuple[SlotMove, ...] = ()
    ceiling: Ceiling | None = None
    why: str = ""
    """Why there is nothing to move; empty if there is something to move."""
    busiest: float = 1.0
    """The load of the busiest of the nodes that slots would leave ÷ the mean."""
    drains: bool = False
    """Whether slots leave a node without capacity."""
    relieves: bool = False
    """Whether slots leave a node because it is nearly full."""
    unlike: tuple[str, ...] = ()
    """Nodes whose modules, functions or users differ from those of most nodes."""

    @property
    def slots(self) -> int:
        return sum(len(move.slots) for move in self.moves)

    @property
    def size(self) -> int:
        return sum(move.size for move in self.moves)


class SlotPolicy:
    """Plans moves when a cluster stays out of balance. Lets moved slots rest."""

    def __init__(self, rules: SlotRules) -> None:
        self._rules = rules
        self._streak = 0
        self._is_moving = False
        self._moved: dict[int, float] = {}

    def adopt(self, rules: SlotRules) -> None:
        """Decide by these rules from now on."""
        self._rules = rules

    def note(self, moved: Mapping[int, float]) -> None:
        """Remember when slots were moved, so that they rest."""
        self._moved |= moved

    def decide(self, load: ClusterLoad) -> Plan:
        """Return the plan for now. It is empty unless the imbalance lasts."""
        rules = self._rules
        self._moved = {s: t for s, t in self._moved.items() if load.at_s - t < rules.rest_s}
        plan = self.again(load)
        if plan.drains:
            return plan
        limit = rules.stop if self._is_moving else rules.start
        is_worth = plan.relieves or plan.busiest > limit
        self._streak = self._streak + 1 if plan.moves and is_worth else 0
        self._is_moving = self._is_moving and self._streak > 0
        if not self._streak:
            why = plan.why or f"{plan.busiest:.2f} × the mean is below the start of {limit:.2f} ×"
            return msgspec.structs.replace(plan, moves=(), after=plan.before, why=why)
        if not self._is_moving and self._streak < rules.patience:
            seen = f"{plan.busiest:.2f} × the mean in {self._streak} of {rules.patience} windows"
            return msgspec.structs.replace(plan, moves=(), after=plan.before, why=seen)
        self._is_moving = True
        return plan

    def again(self, load: ClusterLoad) -> Plan:
        """Plan once more for the same window, for example with measured sizes of slots."""
        return plan_moves(load, self._rules, self._moved)


def plan_moves(load: ClusterLoad, rules: SlotRules, resting: Collection[int] = ()) -> Plan:
    """Return the moves that balance the present load, even if the imbalance is small or new."""
    return msgspec.structs.replace(_plan(load, rules, resting), unlike=_unlike(load.nodes))


def _unlike(nodes: Collection[NodeLoad]) -> tuple[str, ...]:
    """Return the addresses of nodes that are not of the most frequent kind."""
    kinds = Counter(node.kind for node in nodes)
    usual = max(kinds, key=lambda kind: kinds[kind], default="")
    return tuple(node.address for node in nodes if node.kind != usual)


def _plan(load: ClusterLoad, rules: SlotRules, resting: Collection[int]) -> Plan:
    board = _Board(load, rules, resting)
    before = board.ratio
    if len(load.nodes) < 2:
        return Plan(before, before, why="the cluster has one primary: nothing can move")
    if not any(node.cores for node in load.nodes):
        return Plan(before, before, why="no node has capacity: all have cores=0")
    is_idle = board.busiest_used < rules.idle
    if is_idle and not board.drained and not board.crowded:
        why = f"the busiest node uses {board.busiest_used:.1%} of its capacity: too little to act"
        return Plan(before, before, why=f"{why} (below idle, {rules.idle:.1%})")
    ceiling = board.ceiling()
    ratios, kept = board.ratios, set[str]()
    while True:
        picks = [*board.draining()]
        drains = bool(picks)
        if not drains and (relief := [*board.relieving()]):
            moves = tuple(_joined(relief, load, relieves=True))
            return Plan(before, board.ratio, moves, ceiling, relieves=True)
        picks += [] if is_idle else board.picks(kept, rules.slots_max - slots_in(picks))
        sources = {pick.source for pick in picks} - board.drained
        vain = {each for each in sources if board.shed(each, picks) < rules.worth}
        if not vain:
            break
        kept |= vain
        board = _Board(load, rules, resting)
    why = "" if picks else board.why_nothing(ceiling, bool(kept))
    busiest = max((ratios[each] for each in sources), default=1.0)
    return Plan(before, board.ratio, tuple(_joined(picks, load)), ceiling, why, busiest, drains)


class _Unit(msgspec.Struct, frozen=True):
    """Slots that a plan moves together: one busy slot, or several that are busy only together."""

    slots: tuple[SlotLoad, ...]
    demand: SlotDemand
    size: int
    most: int
    largest: int
    """The upper bound of the size of its largest slot."""
    piece: int
    ranges: list[tuple[int, int]]

    @property
    def first(self) -> int:
        return self.slots[0].slot


class _Pick(msgspec.Struct, frozen=True):
    unit: _Unit
    source: str
    target: str
    source_ratio: float
    target_ratio: float


def slots_in(picks: Collection[_Pick]) -> int:
    return sum(len(pick.unit.slots) for pick in picks)


class _Board:
    """The state of a plan in the making: which node has which slots, and how busy it is."""

    def __init__(self, load: ClusterLoad, rules: SlotRules, resting: Collection[int]) -> None:
        self._rules = rules
        self._nodes = {node.id: node for node in load.nodes if node.cores}
        self._kinds = {node.id: node.kind for node in load.nodes}
        self.drained = {node.id for node in load.nodes if not node.cores}
        self._slots: dict[str, dict[int, SlotLoad]] = {node.id: {} for node in load.nodes}
        self._demands = {node.id: SlotDemand() for node in load.nodes}
        self._written_s = dict.fromkeys(self._kinds, 0.0)
        self._room = {node.id: node.room for node in load.nodes}
        self._spare = {node.id: node.spare for node in load.nodes}
        self.crowded = {id: node.excess for id, node in self._nodes.items() if node.excess > 0}
        large = (slot.slot for slot in load.slots if slot.keys > rules.keys_max)
        self._fixed = {*rules.pinned, *resting, *large}
        self._owner: dict[int, str] = {}
        self._units: dict[str, list[_Unit]] = {}
        for slot in load.slots:
            if slot.node in self._kinds:
                self._put(slot, slot.node)
                self._demands[slot.node].add(slot)
                self._written_s[slot.node] += slot.written_s
        self._ranges = _ranges(self._owner)
        whole = SlotDemand()
        for demand in self._demands.values():
            whole.add(demand)
        self._mean = mean_used(whole, self._nodes.values())
        self._before: dict[str, float] = {}
        self._idle = IDLE * self._mean * len(self._nodes) / max(len(self._owner), 1)

    def _put(self, slot: SlotLoad, node: str) -> None:
        self._slots[node][slot.slot] = slot
        self._owner[slot.slot] = node

    def used(self, node: str, unit: _Unit | None = None, sign: int = 1) -> float:
        """Return how busy a node is, or would be with `unit` added, or (`sign` -1) without it."""
        demand = self._demands[node]
        if unit is not None:
            demand = demand.joined(unit.demand, sign)
        return demand.used(self._nodes[node])

    @property
    def busiest_used(self) -> float:
        return max(map(self.used, self._nodes), default=0.0)

    @property
    def ratio(self) -> float:
        return self.busiest_used / self._mean if self._mean else 1.0

    @property
    def ratios(self) -> dict[str, float]:
        """How busy each node is ÷ the mean."""
        return {node: self.used(node) / self._mean if self._mean else 1.0 for node in self._nodes}

    def shed(self, node: str, picks: Collection[_Pick]) -> float:
        """How much load leaves a node by these moves, as a share of the mean load."""
        gone = SlotDemand()
        for pick in picks:
            if pick.source == node:
                gone.add(pick.unit.demand)
        return gone.used(self._nodes[node]) / self._mean

    def ceiling(self) -> Ceiling | None:
        """Return the slot that no move can help: alone it is busier than the mean node may be.

        Returns None if there is no such slot.
        """
        alone = [
            (_alone(slot, self._nodes[node]), node, slot)
            for node, slots in self._slots.items()
            if node in self._nodes
            for slot in slots.values()
        ]
        used, node, slot = max(alone, key=lambda each: each[0], default=(0.0, "", None))
        if slot is None or used <= self._rules.stop * self._mean:
            return None
        replicated_s = self._nodes[node].replicas * slot.replicated_s
        reads = slot.net_s - slot.written_s - replicated_s + slot.reads_s > slot.written_s
        return Ceiling(slot.slot, node, used, used / self._mean, slot.keys, reads)

    def draining(self) -> Iterator[_Pick]:
        """Move all slots of drained nodes, piece by piece, each to the least busy node."""
        left = self._rules.slots_max
        for source in sorted(self.drained):
            self._units[source] = list(self._pieces(source))
            for unit in [*self._units[source]]:
                pick = self._to_least_busy(unit, source) if len(unit.slots) <= left else None
                if pick is not None:
                    left -= len(unit.slots)
                    yield pick

    def relieving(self) -> Iterator[_Pick]:
        """Move slots away from nodes that are nearly full, most data for the least load first.

        A piece that holds more data than the node must give up moves only if no smaller one can.
        """
        left = self._rules.slots_max
        for source, excess in sorted(self.crowded.items(), key=lambda each: -each[1]):
            over = excess
            for unit in self._by_data(source, excess):
                if over <= 0 or len(unit.slots) > left or (over < unit.size and over < excess):
                    continue
                pick = self._to_least_busy(unit, source, self._rules.ranges_max)
                if pick is not None:
                    over -= unit.size
                    left -= len(unit.slots)
                    yield pick

    def _by_data(self, source: str, excess: float) -> list[_Unit]:
        """Return what may leave a full node: most data for the least load first.

        Pieces with more data than `excess` come last, the smallest first.
        """
        node = self._nodes[source]
        units = [unit for unit in self._pieces(source, excess / PIECES) if unit.size]
        self._units[source] = units

        def order(unit: _Unit) -> tuple[bool, float]:
            is_large = unit.size > excess
            return is_large, unit.size if is_large else unit.demand.used(node) / unit.size

        return sorted(units, key=order)

    def _to_least_busy(
        self, unit: _Unit, source: str, ranges_max: float = math.inf
    ) -> _Pick | None:
        """Move a unit to the least busy node that has room; None if there is none."""

        def order(node: str) -> tuple[int, int, str]:  # not all idle slots to one node
            step = round(self.used(node) / (STEP * self._mean)) if self._mean else 0
            return step, len(self._slots[node]), node

        targets = sorted(self._nodes.keys() - {source}, key=order)
        target = next((node for node in targets if self._has_room(node, source, unit)), None)
        added = self._added_ranges(unit, target) if target else 0
        if target is None or (added > 0 and self._ranges + added > ranges_max):
            return None
        right = self.used(target, unit) / self._mean if self._mean else 1.0
        pick = _Pick(unit, source, target, 0.0, right)
        self._move(pick)
        return pick

    def _pieces(self, source: str, bytes_max: float = math.inf) -> Iterator[_Unit]:
        """Divide the slots of a node into neighbours with little load and little data."""
        enough = 2 * self._rules.gain_min * self._mean
        piece: list[SlotLoad] = []
        heat = size = 0.0
        for number in sorted(self._slots[source].keys() - self._fixed):
            slot = self._slots[source][number]
            is_next = bool(piece) and piece[-1].slot + 1 == number
            is_much = heat > enough or size + slot.size > bytes_max or len(piece) == TOGETHER
            if piece and (is_much or not is_next):
                yield _unit(piece)
                piece, heat, size = [], 0.0, 0.0
            piece.append(slot)
            heat += slot.heat
            size += slot.size
        if piece:
            yield _unit(piece)

    def picks(self, kept: Collection[str], left: int) -> Iterator[_Pick]:
        """Move up to `left` slots, until all nodes are even or nothing helps any more.

        No slot leaves the nodes in `kept`.
        """
        stuck = {*kept}
        self._before = {node: self.used(node) for node in self._nodes}
        while left > 0:
            source = max(self._nodes.keys() - stuck, key=self._order, default=None)
            if source is None or self.used(source) <= self._rules.stop * self._mean:
                return
            pick = self._best(source, left)
            if pick is None:
                stuck.add(source)  # its slots are pinned, resting, or too large to help
                continue
            self._move(pick)
            left -= len(pick.unit.slots)
            yield pick

    def _order(self, node: str) -> tuple[float, str]:
        return self.used(node), node

    def _best(self, source: str, slots_max: int) -> _Pick | None:
        """Return the unit of `source` to move next.

        Its move leaves the busier of the two nodes least busy.
        """
        busy, mean = self.used(source), self._mean
        found: list[tuple[float, float, int, _Pick]] = []
        cooler = (each for each in self._nodes.keys() - {source} if self._is_cooler(each, source))
        targets = sorted(cooler, key=self._order)
        for unit in self._leaving(source):
            target = next((node for node in targets if self._has_room(node, source, unit)), None)
            if target is None or len(unit.slots) > slots_max:
                continue
            left, right = self.used(source, unit, -1), self.used(target, unit)
            gain, added = busy - max(left, right), self._added_ranges(unit, target)
            fits = added <= 0 or self._ranges + added <= self._rules.ranges_max
            least = max(self._rules.gain_min * mean, GAIN * unit.demand.used(self._nodes[source]))
            if fits and gain >= least > 0:
                pick = _Pick(unit, source, target, left / mean, right / mean)
                found.append((gain, _cost(unit, added), unit.first, pick))
        best = max((gain for gain, *_ in found), default=0.0)
        alike = [each for each in found if each[0] >= ALIKE * best]
        return min(alike, key=lambda each: (each[1], each[2]))[3] if alike else None

    def _is_cooler(self, target: str, source: str) -> bool:
        """Whether `target` was clearly less busy than `source` when the plan began.

        Slots should leave each node above `stop`. If slots went from one such node to another that
        is about as busy, noise would send them back. But if `source` was calm when the plan began,
        it is busy only because this plan gave it a large slot. Then it may give small slots to any
        node.
        """
        before, rules = self._before, self._rules
        is_one_calm = min(before[target], before[source]) <= rules.stop * self._mean
        return is_one_calm or before[source] >= rules.start * before[target]

    def _leaving(self, source: str) -> list[_Unit]:
        """Return the units that may leave a node now.

        A slot that alone makes up half of the node's load may not.
        """
        if source not in self._units:
            self._units[source] = list(self._divided(source))
        node, dominant = self._nodes[source], HALF * self.used(source)
        return [
            unit
            for unit in self._units[source]
            if len(unit.slots) > 1 or _alone(unit.slots[0], node) < dominant
        ]

    def _divided(self, source: str) -> Iterator[_Unit]:
        """Divide the slots of a node into units: busy slots alone, others in groups.

        Idle slots stay. Empty slots between two slots of a group are an exception: they move with
        the group, since this costs nothing and keeps the slots in one range.
        """
        node, enough = self._nodes[source], 2 * self._rules.gain_min * self._mean
        group: list[SlotLoad] = []
        between: list[SlotLoad] = []
        heat = 0.0
        for number in sorted(self._slots[source].keys() - self._fixed):
            slot = self._slots[source][number]
            used = _alone(slot, node)
            if used <= self._idle:
                between = between if slot.keys else [*between, slot]
                continue
            if used >= enough:
                yield _unit([slot])
                continue
            if group and group[-1].slot + len(between) + 1 == number:
                group += between
            group.append(slot)
            between = []
            heat += used
            if heat >= enough:
                yield _unit(group)
                group, heat = [], 0.0
        if group:
            yield _unit(group)

    def _has_room(self, target: str, source: str, unit: _Unit) -> bool:
        """Whether the target can store the slots and the source can copy them one by one."""
        if self._kinds[target] != self._kinds[source]:  # it would refuse some requests
            return False
        can_copy = unit.largest <= may_copy(self._spare[source], self._written_s[source])
        needed = unit.most + max(unit.piece - self._nodes[target].headroom, 0)
        return can_copy and needed <= self._room[target]

    def _added_ranges(self, unit: _Unit, target: str) -> int:
        """Return by how many the number of slot ranges changes if the unit moves to `target`."""
        source = self._owner[unit.first]
        sides = [self._owner.get(side) for a, b in unit.ranges for side in (a - 1, b + 1)]
        return sides.count(source) - sides.count(target)

    def _move(self, pick: _Pick) -> None:
        self._ranges += self._added_ranges(pick.unit, pick.target)
        self._units[pick.source].remove(pick.unit)
        for slot in pick.unit.slots:
            del self._slots[pick.source][slot.slot]
            self._put(slot, pick.target)
            self._fixed.add(slot.slot)
        self._demands[pick.source].add(pick.unit.demand, -1)
        self._demands[pick.target].add(pick.unit.demand)
        self._room[pick.target] -= pick.unit.most

    def why_nothing(self, ceiling: Ceiling | None, is_vain: bool) -> str:
        if any(self._slots[node] for node in self.drained):
            return f"a node with cores=0 keeps its slots: they {self._stuck}"
        if self.crowded:
            full = ", ".join(self._nodes[id].address for id in sorted(self.crowded))
            return f"slots should leave {full}, which is nearly full, but they {self._stuck}"
        if self.ratio <= self._rules.stop:
            return f"balanced: the busiest node has {self.ratio:.2f} × the mean load"
        if ceiling is not None:
            return ceiling.words
        if is_vain:
            return "no move would bring enough: the slots that could leave have too little load"
        return f"no move would help: slots {self._stuck}"

    @property
    def _stuck(self) -> str:
        """Why slots may be unable to leave."""
        keys = f"{self._rules.keys_max:,}"
        return f"are pinned, rest, have over {keys} keys, or find no room on a suitable node"


def _alone(slot: SlotLoad, node: NodeLoad) -> float:
    return demand_of([slot]).used(node)


def _ranges(owner: Mapping[int, str]) -> int:
    """The number of ranges of neighbouring slots with the same owner."""
    return sum(1 for slot, node in owner.items() if owner.get(slot - 1) != node)


def _unit(slots: list[SlotLoad]) -> _Unit:
    most = [max(slot.most, slot.size) for slot in slots]
    return _Unit(
        tuple(slots),
        demand_of(slots),
        sum(slot.size for slot in slots),
        sum(most),
        max(most),
        max(slot.piece for slot in slots),
        as_ranges(slot.slot for slot in slots),
    )


def _cost(unit: _Unit, added_ranges: int) -> float:
    """The cost of a move in bytes: the data, new writes during the move, and new slot ranges."""
    written_s = sum(slot.written_s for slot in unit.slots)
    return unit.size + written_s + max(added_ranges, 0) * RANGE_COST


def _joined(picks: list[_Pick], load: ClusterLoad, relieves: bool = False) -> Iterator[SlotMove]:
    """Join all picks between the same two nodes to one move. The most helpful moves come first."""
    nodes = {node.id: node for node in load.nodes}
    written_s = dict.fromkeys(nodes, 0.0)
    for slot in load.slots:
        if slot.node in nodes:
            written_s[slot.node] += slot.written_s
    groups: dict[tuple[str, str], list[_Pick]] = {}
    for pick in picks:
        groups.setdefault((pick.source, pick.target), []).append(pick)
    for (source, target), group in groups.items():
        yield SlotMove(
            tuple(sorted(slot.slot for pick in group for slot in pick.unit.slots)),
            source,
            target,
            sum(pick.unit.size for pick in group),
            _reason(group, nodes[source], nodes[target].address, relieves),
            sum(pick.unit.most for pick in group),
            written_s[source],
            relieves,
        )


def _reason(group: list[_Pick], source: NodeLoad, target: str, relieves: bool) -> str:
    heat, last = sum(slot.heat for pick in group for slot in pick.unit.slots), group[-1]
    goes = f"{heat:.1%} of a core goes to {target} ({last.target_ratio:.2f} × the mean afterwards)"
    if not source.cores:
        return f"empties {source.address}, which has cores=0: {goes}"
    if relieves:
        over = f"{source.excess / 1e6:,.1f} MB more than {ROOM:.0%} of its memory"
        return f"relieves {source.address}, which has {over}: {goes}"
    return (
        f"takes {heat:.1%} of a core from {source.address} ({last.source_ratio:.2f} × the mean "
        f"afterwards) to {target} ({last.target_ratio:.2f} ×)"
    )
