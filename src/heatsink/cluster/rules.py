"""When slots may move, how many, and how fast: the settings of planner and mover."""

from __future__ import annotations

import math
import re

import msgspec

from heatsink.bulk.settings import PARTITIONS_MAX
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import CheckedStruct, check_kind, check_number

from .slots import parse_slots

DAY_MINUTES = 24 * 60
HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


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
    """The least that a slot or a group of slots must bring, as a share of the mean load."""
    worth: float = 0.03
    """How much load must leave a node, as a share of the mean load, for any slot to leave it."""
    slots_max: int = 4_096
    """The most slots in one plan."""
    ranges_max: int = 2_000
    """The most ranges of slots in the whole cluster. Clients download the list of ranges."""
    rest_s: float = 600.0
    """How long a slot stays where it was moved to."""
    pinned: frozenset[int] = frozenset()
    """Slots that never move."""
    keys_max: int = 1_000_000
    """A slot with more keys never moves. Its source would stop to delete them all."""

    def __post_init__(self) -> None:
        check_number("stop", self.stop, 1, 10)
        check_number("start", self.start, self.stop, 10)
        check_number("patience", self.patience, 1, 1_000)
        check_number("idle", self.idle, 0, 1)
        check_number("gain_min", self.gain_min, 0, 1)
        check_number("worth", self.worth, 0, 1)
        check_number("slots_max", self.slots_max, 1, 16_384)
        check_number("ranges_max", self.ranges_max, 1, 16_384)
        check_number("rest_s", self.rest_s, 0, 86_400)
        check_number("keys_max", self.keys_max, 1, 10**12)


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
    job_keys: int = 100_000
    """The most keys in one migration, unless one slot has more."""
    timeout_s: float = 120.0
    """After this time, a migration is cancelled."""
    hours: tuple[int, int] | None = None
    """From which to which minute of the day (UTC) slots may move; None for any time."""

    def __post_init__(self) -> None:
        check_number("bytes_s", self.bytes_s, 1, 1e12)
        check_number("slots_per_hour", self.slots_per_hour, 1, 10**6)
        check_number("job_slots", self.job_slots, 1, 16_384)
        check_number("job_bytes", self.job_bytes, 1, 10**12)
        check_number("job_keys", self.job_keys, 1, 10**12)
        check_number("timeout_s", self.timeout_s, 1, 86_400)
        for minute in self.hours or ():
            check_number("hours", minute, 0, DAY_MINUTES)

    @property
    def day_words(self) -> str:
        """The part of the day in which slots may move, as people write it."""
        minutes = self.hours or (0, DAY_MINUTES)
        return " to ".join(f"{minute // 60:02}:{minute % 60:02}" for minute in minutes)

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
    leave_queue: int = 0
    """The number of partitions of a queue whose slots never move; 0: they move like all others."""
    node_megabytes: float = 0.0
    """The memory of a node without `maxmemory`; 0 for its part of the memory of its machine."""
    keys_max: int = 1_000_000
    """A slot with more keys never moves. Its source would stop to delete them all."""
    cores: str = ""
    """CPU capacity of nodes: `10.0.0.1:6379=2,10.0.0.2:6379=0`. Others have 1; 0 drains a node."""

    def __post_init__(self) -> None:
        check_kind("balance", self.balance, bool)
        check_number("window_s", self.window_s, 0.1, 600)
        check_number("node_megabytes", self.node_megabytes, 0, 1e9)
        check_number("leave_queue", self.leave_queue, 0, PARTITIONS_MAX)
        check_kind("hours", self.hours, str)
        check_kind("pinned", self.pinned, str)
        check_kind("cores", self.cores, str)
        _ = self.rules, self.limits, self.capacities  # they check their values

    @property
    def rules(self) -> SlotRules:
        """The rules of the planner, without the slots of the queue."""
        pinned = parse_slots(self.pinned) if self.pinned else frozenset()
        return SlotRules(
            start=self.start,
            stop=self.stop,
            idle=self.idle,
            pinned=pinned,
            keys_max=self.keys_max,
        )

    @property
    def capacities(self) -> dict[str, float]:
        """The CPU capacity of nodes by address."""
        return dict(map(parse_cores, self.cores.split(","))) if self.cores else {}

    @property
    def limits(self) -> MoveLimits:
        hours = parse_hours(self.hours) if self.hours else None
        check_number("megabytes_s", self.megabytes_s, 0.001, 1e6)
        return MoveLimits(
            bytes_s=self.megabytes_s * 1e6, slots_per_hour=self.slots_per_hour, hours=hours
        )


def parse_cores(text: str) -> tuple[str, float]:
    """Return node and capacity from a text like `10.0.0.1:6379=2`. Raises `InvalidSetting`."""
    node, _, number = text.strip().rpartition("=")
    try:
        cores = float(number)
    except ValueError:
        cores = math.nan
    if not node.rpartition(":")[2].isdigit() or not (cores == 0 or 0.01 <= cores <= 1_000):
        raise InvalidSetting(
            f"{text.strip()!r} is no node with its cores (0, or 0.01 to 1,000): "
            "use 10.0.0.1:6379=2",
            field="cores",
        )
    return node, cores


def parse_hours(text: str) -> tuple[int, int]:
    """Return the minutes of the day in a text like `22:00-06:00`. Raises `InvalidSetting`."""
    match = HOURS.fullmatch(text)
    if match is None or any(
        int(match[n]) > most for n, most in ((1, 24), (2, 59), (3, 24), (4, 59))
    ):
        raise InvalidSetting(f"{text!r} is no part of a day: use 22:00-06:00 (UTC)", field="hours")
    first, last = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    if first == last:
        raise InvalidSetting(
            f"{text!r} is an empty part of a day, in which nothing would ever move: use "
            "22:00-06:00 (UTC), or leave it out",
            field="hours",
        )
    return first, last
