"""A hot chat on a new table: plain, with adaptive capacity, salted, and with both.

*Adaptive capacity*: the store splits hot partitions. *Salted*: Heatsink spreads the chat over
several buckets. The emulator's capacity model simulates the partitions, and the production policy
decides the number of buckets. Only the load is invented. The demo uses `seconds` to show the same
run second by second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from random import Random

import msgspec

from heatsink.emulator.capacity.limits import FIXED, SplitSettings, TableCapacity
from heatsink.emulator.capacity.partition import PartitionState
from heatsink.emulator.capacity.policy import Change
from heatsink.emulator.capacity.table import AdaptiveTable
from heatsink.heat.heat import KeyHeat, WindowHeat
from heatsink.primitives.keys import seeded_hash
from heatsink.primitives.words import counted
from heatsink.registry.layouts import COLD, Layout
from heatsink.spread.policy import BucketPolicy, BucketRules, KeyObservation

from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all

WRITES_PER_S = 3_000
OTHERS_PER_S = 600
OTHERS = 200
CALM_PER_S = 200
SPIKE_S = 5
SECONDS = 60
PARTITIONS = 4
LAG_S = 10.0
LAST_S = 10
HOT = "conversation:match"
RULES = BucketRules(buckets_max=8)
ADAPTIVE = SplitSettings(split_after_s=LAG_S, cool_down_s=1.0)
CASES = {
    "plain": (FIXED, False),
    "adaptive alone": (ADAPTIVE, False),
    "salted": (FIXED, True),
    "salted + adaptive": (ADAPTIVE, True),
}


class PartitionsSecond(msgspec.Struct, frozen=True):
    """What happened to the writes of one second, and the table's state at the end of the second."""

    wanted: int
    accepted: int
    hot_throttled: int
    others_throttled: int
    buckets: int
    partitions: list[PartitionState]
    changes: list[Change]

    @property
    def throttled(self) -> int:
        return self.hot_throttled + self.others_throttled


class HotChat:
    """A conversation that becomes hot during a match, among conversations with a constant load."""

    def __init__(self, case: str, seed: int) -> None:
        settings, self._is_salted = CASES[case]
        self._chance = Random(seed)
        self._token = seeded_hash(seed.to_bytes(8, "big"))
        self._table = AdaptiveTable(settings, TableCapacity(), PARTITIONS, 0.0)
        self._policy = BucketPolicy(RULES)
        self._layout = COLD
        others = [f"conversation:{number}" for number in range(OTHERS)]
        self._others = [self._token(name.encode()) for name in others]

    def second(self, number: int, writes_per_s: int) -> PartitionsSecond:
        hot = self._hot_tokens(number)
        count = writes_per_s + OTHERS_PER_S
        throttled: Counter[bool] = Counter()
        changes: list[Change] = []
        for place in range(count):
            now_s = number + place / count
            if place % 100 == 0:
                changes += self._table.review(now_s)
            is_hot = self._chance.random() * count < writes_per_s
            token = self._chance.choice(hot if is_hot else self._others)
            throttled[is_hot] += not self._table.charge(token, 1.0, 0.0, now_s).accepted
        buckets = len(hot)
        if self._is_salted:
            self._salt(number, writes_per_s, throttled[True])
        return PartitionsSecond(
            wanted=count,
            accepted=count - throttled.total(),
            hot_throttled=throttled[True],
            others_throttled=throttled[False],
            buckets=buckets,
            partitions=self._table.partitions(),
            changes=changes,
        )

    def _hot_tokens(self, second: int) -> list[int]:
        epoch = self._layout.epoch_at(second * 1_000)
        return [self._token(name.encode()) for name in epoch.partitions(HOT)]

    def _salt(self, second: int, writes_s: int, throttles: int) -> None:
        """At the end of a second, let the production policy decide on the number of buckets.

        If the number changes, a new epoch begins with the next second.
        """
        heat = KeyHeat(float(writes_s), float(writes_s), 0.0, float(throttles), 0.0)
        window = WindowHeat(second, float(second), True, {HOT: heat}, 0.0)
        layouts: dict[str, Layout] = {HOT: self._layout}
        for decision in self._policy.decide(KeyObservation([window], layouts, {})):
            assert decision.value is not None
            self._layout = self._layout.then((second + 1) * 1_000, decision.value)


def seconds(
    case: str, writes_per_s: int = WRITES_PER_S, seed: int = 1
) -> Iterator[PartitionsSecond]:
    """Simulate one case, and yield the result of each second."""
    chat = HotChat(case, seed)
    for number in range(SECONDS):
        yield chat.second(number, CALM_PER_S if number < SPIKE_S else writes_per_s)


class PartitionsRun(msgspec.Struct, frozen=True):
    case: str
    seconds: list[PartitionsSecond]

    def each(self, name: str) -> list[float]:
        return [float(getattr(second, name)) for second in self.seconds]

    def rate(self, name: str) -> float:
        """Return the mean of the field `name` over the last LAST_S seconds.

        By then, splits and new buckets are in effect.
        """
        return sum(self.each(name)[-LAST_S:]) / LAST_S


def one_run(case: str, writes_per_s: int, seed: int) -> PartitionsRun:
    return PartitionsRun(case, list(seconds(case, writes_per_s, seed)))


def experiment(writes_per_s: int = WRITES_PER_S, seed: int = 1) -> LabReport:
    runs = run_all([partial(one_run, case, writes_per_s, seed) for case in CASES])
    plain, adaptive, salted, both = runs
    return LabReport(
        name="partitions",
        title="Hot partitions: adaptive capacity, salting, and both",
        story=_story(writes_per_s),
        figures=[
            Figure("adaptive alone", _throttled(adaptive), f"plain: {_throttled(plain)}"),
            Figure("salted", _throttled(salted), f"{_shape(salted)}"),
            Figure("salted + adaptive", _throttled(both), f"{_shape(both)}"),
        ],
        tables=[_table(runs), _changes(adaptive), _changes(both)],
        charts=[
            Chart("Accepted writes", "per second", _lines(runs, "accepted")),
            Chart("Throttled writes", "per second", _lines(runs, "throttled")),
        ],
    )


def _story(writes_per_s: int) -> str:
    return f"""\
A new table has {PARTITIONS} partitions of {ADAPTIVE.write_units:,.0f} write units per second. From
second {SPIKE_S} on one conversation gets {writes_per_s:,} writes per second, and {OTHERS} others
{OTHERS_PER_S} together. The store splits a partition that was hot for {LAG_S:g} s (DynamoDB takes
minutes). Throttled writes are not retried.

Adaptive capacity moves the conversation to a partition of its own, so that its neighbours have
room. It cannot do more, since a key is never split. Salting spreads the conversation over up to
{RULES.buckets_max} keys (every page queries all of them), but these are placed in the existing
partitions, and keys in one partition share its limit. With both, the store splits the partitions
that the salted keys share."""


def _throttled(run: PartitionsRun) -> str:
    return f"{run.rate('throttled'):,.0f} throttled/s"


def _shape(run: PartitionsRun) -> str:
    last = run.seconds[-1]
    buckets = counted(last.buckets, "bucket")
    return f"{buckets}, {counted(len(last.partitions), 'partition')}"


def _table(runs: list[PartitionsRun]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            run.case,
            round(run.rate("accepted")),
            round(run.rate("hot_throttled")),
            round(run.rate("others_throttled")),
            sum(each.throttled for each in run.seconds),
            run.seconds[-1].buckets,
            len(run.seconds[-1].partitions),
        ]
        for run in runs
    ]
    columns = ["case", "accepted/s", "throttled/s", "of others", "in all", "buckets", "partitions"]
    note = "throttled/s counts the conversation only; “in all” counts all keys over the whole run."
    return ReportTable(f"The last {LAST_S} of {SECONDS} seconds", columns, rows, note)


def _changes(run: PartitionsRun) -> ReportTable:
    rows: list[list[Cell]] = [
        [number, type(change).__name__, change.partition, change.reason]
        for number, each in enumerate(run.seconds)
        for change in each.changes
    ]
    return ReportTable(
        f"What the store did: {run.case}", ["second", "change", "partition", "why"], rows
    )


def _lines(runs: list[PartitionsRun], name: str) -> list[Series]:
    places = [float(number) for number in range(SECONDS)]
    return [
        Series(run.case, places, run.each(name), colour=colour) for colour, run in enumerate(runs)
    ]
