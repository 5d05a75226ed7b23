"""Which slots to move, and why: a pure planner for a Redis or Valkey Cluster.

A node is as busy as its busiest resource: CPU or network. The planner takes slots from the busiest
node and gives them to the coolest, one by one, while this makes the busier of the two less busy. If
several moves help about equally, the planner prefers moves with fewer bytes, fewer writes and fewer
new ranges of slots. A slot that makes up half of its node's load stays. The other slots of this
node leave instead, so that the slot gets the node for itself.

A slot cannot be divided. If one slot alone is busier than the mean node, it sets a *ceiling*: no
move can make the busiest node less busy than this slot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import CheckedStruct, check_kind, check_number

from .load import SLOTS, ClusterLoad, NodeLoad, SlotLoad

FULL = 0.9  # of a node's capacity: above it, requests wait
HALF = 0.5  # of its node's load: such a slot stays, and its neighbours leave
ROOM = 0.8  # of maxmemory: a target must stay below it
ALIKE = 0.9  # of the best gain: among such moves, the cheapest wins
DAY_MINUTES = 24 * 60
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")
RANGE_COST = 64 * 1024  # bytes: what one more range of slots counts as


class SlotRules(msgspec.Struct, frozen=True):
    """When to move slots, and how much at a time."""

    start: float = 1.25
    """Begin to move when the busiest node is this many times as busy as the mean."""
    stop: float = 1.10
    """Stop when the busiest node is at most this many times as busy as the mean."""
    patience: int = 3
    """How many windows in a row must be above `start`."""
    idle: float = 0.02
    """Do nothing while the busiest node uses less than this share of its capacity."""
    gain_min: float = 0.005
    """The least that a slot must bring, as a share of the mean load."""
    slots_max: int = 4_096
    """The most slots in one plan."""
    ranges_max: int = 2_000
    """The most ranges of slots in the whole cluster. Clients download the list of ranges."""
    rest_s: float = 600.0
    """How long a slot stays where it was moved to."""
    pinned: frozenset[int] = frozenset()
    """Slots that never move."""

    def __post_init__(self) -> None:
        check_number("stop", self.stop, 1, 10)
        check_number("start", self.start, self.stop, 10)
        check_number("patience", self.patience, 1, 1_000)
        check_number("idle", self.idle, 0, 1)
        check_number("gain_min", self.gain_min, 0, 1)
        check_number("slots_max", self.slots_max, 1, 16_384)
        check_number("ranges_max", self.ranges_max, 1, 16_384)
        check_number("rest_s", self.rest_s, 0, 86_400)


class MoveLimits(msgspec.Struct, frozen=True):
    """How fast, how much and when slots may move."""

    bytes_s: float = 50e6
    """Data a second, on average over a migration and the pause after it."""
    slots_per_hour: int = 4_096
    """The most slots in any hour."""
    job_slots: int = 256
    """The most slots in one migration."""
    job_bytes: int = 256 * 1024**2
    """The most data in one migration, unless one slot has more."""
    timeout_s: float = 120.0
    """After this time, a migration is cancelled."""
    hours: tuple[int, int] | None = None
    """From which to which minute of the day (UTC) slots may move; None for any time."""

    def __post_init__(self) -> None:
        check_number("bytes_s", self.bytes_s, 1, 1e12)
        check_number("slots_per_hour", self.slots_per_hour, 1, 10**6)
        check_number("job_slots", self.job_slots, 1, 16_384)
        check_number("job_bytes", self.job_bytes, 1, 10**12)
        check_number("timeout_s", self.timeout_s, 1, 86_400)
        for minute in self.hours or ():
            check_number("hours", minute, 0, DAY_MINUTES)

    def allows(self, time_s: float) -> bool:
        """Return whether slots may move at this time of the day."""
        if self.hours is None:
            return True
        first, last = self.hours
        minute = time_s // 60 % DAY_MINUTES
        return first <= minute < last if first <= last else minute >= first or minute < last


class SlotSettings(CheckedStruct, frozen=True):
    """Whether, when and how fast the leader moves slots of the cluster that it watches."""

    balance: bool = False
    """Whether the leader moves slots. Otherwise it only measures, for dashboard and metrics."""
    window_s: float = 5.0
    """Length of a measurement in seconds."""
    start: float = 1.25
    """Begin to move when the busiest node is this many times as busy as the mean."""
    stop: float = 1.10
    """Stop when the busiest node is at most this many times as busy as the mean."""
    idle: float = 0.02
    """Do nothing while the busiest node uses less than this share of its capacity."""
    megabytes_s: float = 50.0
    """The most data a second, on average over a migration and the pause after it."""
    slots_per_hour: int = 4_096
    """The most slots in any hour, whoever moved them."""
    hours: str = ""
    """The part of the day (UTC) in which slots may move: `22:00-06:00`; empty for any time."""
    pinned: str = ""
    """Slots that never move: `5,7-9`."""

    def __post_init__(self) -> None:
        check_kind("balance", self.balance, bool)
        check_number("window_s", self.window_s, 0.1, 600)
        check_kind("hours", self.hours, str)
        check_kind("pinned", self.pinned, str)
        _ = self.rules, self.limits  # both check their values

    @property
    def rules(self) -> SlotRules:
        pinned = parse_slots(self.pinned) if self.pinned else frozenset()
        return SlotRules(start=self.start, stop=self.stop, idle=self.idle, pinned=pinned)

    @property
    def limits(self) -> MoveLimits:
        hours = parse_hours(self.hours) if self.hours else None
        check_number("megabytes_s", self.megabytes_s, 0.001, 1e6)
        return MoveLimits(
            bytes_s=self.megabytes_s * 1e6, slots_per_hour=self.slots_per_hour, hours=hours
        )


def parse_slots(text: str) -> frozenset[int]:
    """Return the slots in a text like `5,7-9`. Raises `InvalidSetting`."""
    found: set[int] = set()
    for word in text.split(","):
        match = RANGE.fullmatch(word.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < SLOTS:
            raise InvalidSetting(
                f"{word.strip()!r} is no slot or range from 0 to {SLOTS - 1}: use 5,7-9",
                field="pinned",
            )
        found |= {*range(first, last + 1)}
    return frozenset(found)


def parse_hours(text: str) -> tuple[int, int]:
    """Return the minutes of the day in a text like `22:00-06:00`. Raises `InvalidSetting`."""
    match = HOURS.fullmatch(text)
    if match is None or any(
        int(match[n]) > most for n, most in ((1, 24), (2, 59), (3, 24), (4, 59))
    ):
        raise InvalidSetting(f"{text!r} is no part of a day: use 22:00-06:00 (UTC)", field="hours")
    return int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])


class Move(msgspec.Struct, frozen=True):
    """Slots that go from one node to another in one migration."""

    slots: tuple[int, ...]
    source: str
    target: str
    size: int
    reason: str


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
    """Whether most of the slot's bytes go out: then it is read more than written."""

    @property
    def is_full(self) -> bool:
        """Whether the slot uses all that a node can do."""
        return self.used >= FULL

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
    moves: tuple[Move, ...] = ()
    ceiling: Ceiling | None = None
    why: str = ""
    """Why there is nothing to move; empty if there is something to move."""

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
        plan = plan_moves(load, rules, self._moved)
        limit = rules.stop if self._is_moving else rules.start
        self._streak = self._streak + 1 if plan.moves and plan.before > limit else 0
        self._is_moving = self._is_moving and self._streak > 0
        if not self._streak:
            why = plan.why or f"{plan.before:.2f} × the mean is below the start of {limit:.2f} ×"
            return msgspec.structs.replace(plan, moves=(), after=plan.before, why=why)
        if not self._is_moving and self._streak < rules.patience:
            seen = f"seen in {self._streak} of {rules.patience} windows in a row"
            return msgspec.structs.replace(plan, moves=(), after=plan.before, why=seen)
        self._is_moving = True
        return plan


def plan_moves(load: ClusterLoad, rules: SlotRules, resting: Collection[int] = ()) -> Plan:
    """Return the moves that balance the present load, even if the imbalance is small or new."""
    board = _Board(load, rules, resting)
    before = board.ratio
    if len(load.nodes) < 2:
        return Plan(before, before, why="the cluster has one primary: nothing can move")
    if board.busiest_used < rules.idle:
        why = f"the busiest node uses {board.busiest_used:.1%} of its capacity: too little to act"
        return Plan(before, before, why=why)
    ceiling = board.ceiling()
    picks = list(board.picks())
    why = "" if picks else board.why_nothing(ceiling)
    return Plan(before, board.ratio, tuple(_joined(picks, load)), ceiling, why)


class _Unit(msgspec.Struct, frozen=True):
    """Slots that move together: one busy slot, or neighbours that are busy only together."""

    slots: tuple[SlotLoad, ...]
    cpu: float
    net_s: float
    size: int

    @property
    def first(self) -> int:
        return self.slots[0].slot

    @property
    def last(self) -> int:
        return self.slots[-1].slot


class _Pick(msgspec.Struct, frozen=True):
    unit: _Unit
    source: str
    target: str
    source_ratio: float
    target_ratio: float


class _Board:
    """The state of a plan in the making: which node has which slots, and how busy it is."""

    def __init__(self, load: ClusterLoad, rules: SlotRules, resting: Collection[int]) -> None:
        self._rules = rules
        self._nodes = {node.id: node for node in load.nodes}
        self._slots: dict[str, dict[int, SlotLoad]] = {node.id: {} for node in load.nodes}
        self._cpu = dict.fromkeys(self._nodes, 0.0)
        self._net = dict.fromkeys(self._nodes, 0.0)
        self._memory = {node.id: node.memory for node in load.nodes}
        self._fixed = {*rules.pinned, *resting}
        self._owner: dict[int, str] = {}
        self._units: dict[str, list[_Unit]] = {}
        for slot in load.slots:
            if slot.node in self._nodes:
                self._put(slot, slot.node)
        self._ranges = _ranges(self._owner)
        cores = sum(node.cores for node in load.nodes)
        net_s = sum(node.net_max_s for node in load.nodes)
        self._mean = max(
            sum(self._cpu.values()) / max(cores, 1e-9), sum(self._net.values()) / max(net_s, 1e-9)
        )

    def _put(self, slot: SlotLoad, node: str) -> None:
        self._slots[node][slot.slot] = slot
        self._owner[slot.slot] = node
        self._cpu[node] += slot.cpu
        self._net[node] += slot.net_s

    def used(self, node: str, unit: _Unit | None = None, sign: int = 1) -> float:
        """How busy a node is, with `unit` added, or with `sign` -1 without it."""
        what = self._nodes[node]
        cpu = self._cpu[node] + (sign * unit.cpu if unit else 0.0)
        net_s = self._net[node] + (sign * unit.net_s if unit else 0.0)
        return max(cpu / what.cores, net_s / what.net_max_s)

    @property
    def busiest_used(self) -> float:
        return max(map(self.used, self._nodes), default=0.0)

    @property
    def ratio(self) -> float:
        return self.busiest_used / self._mean if self._mean else 1.0

    def ceiling(self) -> Ceiling | None:
        """The slot that alone is busier than the mean node may be; None if there is none."""
        alone = [
            (_alone(slot, self._nodes[node]), node, slot)
            for node, slots in self._slots.items()
            for slot in slots.values()
        ]
        used, node, slot = max(alone, key=lambda each: each[0], default=(0.0, "", None))
        if slot is None or used <= self._rules.stop * self._mean:
            return None
        reads = slot.net_s - slot.written_s > slot.written_s
        return Ceiling(slot.slot, node, used, used / self._mean, slot.keys, reads)

    def picks(self) -> Iterator[_Pick]:
        """Move units one by one, until all nodes are even or nothing helps any more."""
        stuck: set[str] = set()
        left = self._rules.slots_max
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
        """The unit of `source` whose move makes the busier of both nodes least busy."""
        busy, mean = self.used(source), self._mean
        found: list[tuple[float, float, int, _Pick]] = []
        targets = sorted(self._nodes.keys() - {source}, key=self._order)
        for unit in self._leaving(source):
            target = next((node for node in targets if self._has_room(node, source, unit)), None)
            if target is None or len(unit.slots) > slots_max:
                continue
            left, right = self.used(source, unit, -1), self.used(target, unit)
            gain, added = busy - max(left, right), self._added_ranges(unit, target)
            fits = added <= 0 or self._ranges + added <= self._rules.ranges_max
            if fits and gain >= self._rules.gain_min * mean > 0:
                pick = _Pick(unit, source, target, left / mean, right / mean)
                found.append((gain, _cost(unit, added), unit.first, pick))
        best = max((gain for gain, *_ in found), default=0.0)
        alike = [each for each in found if each[0] >= ALIKE * best]
        return min(alike, key=lambda each: (each[1], each[2]))[3] if alike else None

    def _leaving(self, source: str) -> list[_Unit]:
        """What may leave a node now: all its units but a slot that makes up half of its load."""
        if source not in self._units:
            self._units[source] = list(self._divided(source))
        node, dominant = self._nodes[source], HALF * self.used(source)
        return [
            unit
            for unit in self._units[source]
            if len(unit.slots) > 1 or _alone(unit.slots[0], node) < dominant
        ]

    def _divided(self, source: str) -> Iterator[_Unit]:
        """Divide the slots of a node into units: busy slots alone, others as runs of neighbours."""
        node, enough = self._nodes[source], 2 * self._rules.gain_min * self._mean
        run: list[SlotLoad] = []
        heat = 0.0
        for number in sorted(self._slots[source]):
            slot = self._slots[source][number]
            used = _alone(slot, node)
            is_next = bool(run) and run[-1].slot == number - 1
            if run and (not is_next or used >= enough or number in self._fixed):
                yield _unit(run)
                run, heat = [], 0.0
            if number in self._fixed:
                continue
            run.append(slot)
            heat += used
            if heat >= enough:
                yield _unit(run)
                run, heat = [], 0.0
        if run:
            yield _unit(run)

    def _has_room(self, target: str, source: str, unit: _Unit) -> bool:
        """Whether the target can store the slots and the source can copy them (fork, buffers).

        A target with other modules, functions or users would refuse some requests.
        """
        limits = (self._nodes[target], self._nodes[source])
        return limits[0].kind == limits[1].kind and all(
            not node.memory_max or self._memory[node.id] + unit.size <= ROOM * node.memory_max
            for node in limits
        )

    def _added_ranges(self, unit: _Unit, target: str) -> int:
        """How many slot ranges the cluster gains or loses if the unit moves to `target`."""
        source = self._owner[unit.first]
        sides = [self._owner.get(unit.first - 1), self._owner.get(unit.last + 1)]
        return sides.count(source) - sides.count(target)

    def _move(self, pick: _Pick) -> None:
        self._ranges += self._added_ranges(pick.unit, pick.target)
        self._units[pick.source].remove(pick.unit)
        for slot in pick.unit.slots:
            del self._slots[pick.source][slot.slot]
            self._put(slot, pick.target)
            self._fixed.add(slot.slot)
        self._cpu[pick.source] -= pick.unit.cpu
        self._net[pick.source] -= pick.unit.net_s
        self._memory[pick.source] -= pick.unit.size
        self._memory[pick.target] += pick.unit.size

    def why_nothing(self, ceiling: Ceiling | None) -> str:
        if self.ratio <= self._rules.stop:
            return f"balanced: the busiest node has {self.ratio:.2f} × the mean load"
        if ceiling is not None:
            return ceiling.words
        return "no move would help: slots are pinned, rest, or find no room on a like node"


def _alone(slot: SlotLoad, node: NodeLoad) -> float:
    return max(slot.cpu / node.cores, slot.net_s / node.net_max_s)


def _ranges(owner: Mapping[int, str]) -> int:
    """The number of ranges of neighbouring slots with the same owner."""
    return sum(1 for slot, node in owner.items() if owner.get(slot - 1) != node)


def _unit(slots: list[SlotLoad]) -> _Unit:
    return _Unit(
        tuple(slots),
        sum(slot.cpu for slot in slots),
        sum(slot.net_s for slot in slots),
        sum(slot.size for slot in slots),
    )


def _cost(unit: _Unit, added_ranges: int) -> float:
    """The cost of a move in bytes: the data, new writes during the move, and new slot ranges."""
    written_s = sum(slot.written_s for slot in unit.slots)
    return unit.size + written_s + max(added_ranges, 0) * RANGE_COST


def _joined(picks: list[_Pick], load: ClusterLoad) -> Iterator[Move]:
    """Join the picks between the same two nodes to one move each, the most helpful first."""
    names = {node.id: node.address for node in load.nodes}
    groups: dict[tuple[str, str], list[_Pick]] = {}
    for pick in picks:
        groups.setdefault((pick.source, pick.target), []).append(pick)
    for (source, target), group in groups.items():
        heat = sum(pick.unit.cpu for pick in group)
        last = group[-1]
        reason = (
            f"takes {heat:.1%} of a core from {names[source]} ({last.source_ratio:.2f} × the mean "
            f"afterwards) to {names[target]} ({last.target_ratio:.2f} ×)"
        )
        slots = tuple(sorted(slot.slot for pick in group for slot in pick.unit.slots))
        yield Move(slots, source, target, sum(pick.unit.size for pick in group), reason)
