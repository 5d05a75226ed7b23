"""Random fleets on virtual time: are hot keys found in time, and cold ones left alone?

Production trackers, reporters, sums, watchlist and policy; a bus and a leader's notice that take a
moment. Keys get hot at a random moment. Some are seen by one server, some by a few, some by all, at
a few writes a second each. In some fleets a new notice waits, as in a fleet of 10,000 servers.

Most servers have tables that hold the hottest of their keys. A fleet in five is *crowded*: each
server has more keys than its table that it sees more often than the hot ones, so the table evicts
these. A real table has this trouble from 16,384 keys in a window on; these are smaller by a factor
of 500. Such a key is counted precisely from the moment on at which a server hears of it.

A fleet in five is beyond its budget: it has so many writes that samples are rare. Only cold keys
are checked there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from heatsink.coordinator import keys as leader
from heatsink.coordinator.keys import KeyWatch
from heatsink.heat import report as reports
from heatsink.heat.count import CAPACITY, Tracker
from heatsink.heat.heat import Report, WindowHeat
from heatsink.heat.report import Reporter, ReportSettings
from heatsink.registry.decisions import View
from heatsink.spread.policy import BucketPolicy, BucketRules
from heatsink.testing import ManualClock

RULES, SETTINGS = BucketRules(), ReportSettings()
LIMIT = RULES.bucket_units_s
TICK_S = 0.1
HOT_AT_S, LASTS_S, FOUND_IN_S = 1.5, 6.0, 2.0
PRECISE_AFTER_S = 2.5
ACCURACY = 0.2
COLD_TICKS = 150
CROWDED_TABLE, OWN_KEYS, OWN_WRITES = 16, 40, 16  # of a server, the writes in a tick
LARGE_FLEET_NOTICES_S = 5.0  # between two notices of a fleet of 10,000 servers


class Outcome:
    """What happened in a fleet, for statistics over many fleets.

    `totals` counts the keys and estimates that were checked, and those that were right.
    """

    def __init__(self, crowded: bool) -> None:
        self.events: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.violations: list[str] = []
        self.where = ", crowded tables" if crowded else ""

    def check(self, what: str, is_right: bool, violation: str) -> None:
        self.totals[what + self.where] += 1
        self.totals[f"{what}{self.where}: right"] += is_right
        if not is_right:
            self.violations.append(violation)


OWN = range(OWN_KEYS)


class Violation(AssertionError):
    """A hot key was found late or misjudged, or a cold one was spread."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("; ".join(outcome.violations))
        self.totals = outcome.totals


@dataclass
class Key:
    name: str
    rate_s: float
    hot_at_s: float
    servers: list[int]
    """The servers that see the key."""


class Bus:
    """Delivers reports at the next tick."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    async def send(self, report: Report) -> None:
        self.reports.append(report)

    async def receive(self) -> list[Report]:
        received, self.reports = self.reports, []
        return received


class Registry:
    """What the leader and the servers use of a registry. A notice arrives at the next tick."""

    def __init__(self, clock: ManualClock, servers: int) -> None:
        self.fleet_now_s = clock.now_s
        self.view = View()
        self.servers = servers
        self.notice = self.said = b""

    def say(self, notice: bytes) -> None:
        self.said = notice

    def deliver(self) -> None:
        self.notice = self.said


class Fleet:
    found = f"hot keys found in {FOUND_IN_S:g} s"

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, (rng := Random(seed))
        self.clock = ManualClock()
        self.start_s = self.clock.now_s()
        self.is_beyond_budget, self.is_crowded = seed % 5 == 4, seed % 5 == 3
        number = rng.randrange(250, 400) if self.is_crowded else round(2 ** rng.uniform(1, 9))
        self.bus, self.registry = self._make_bus(), Registry(self.clock, number)
        any_registry: Any = self.registry
        self.watch = KeyWatch(self.bus, any_registry, "leader", SETTINGS)
        self.policy = BucketPolicy(RULES)
        capacity = CROWDED_TABLE if self.is_crowded else rng.choice((64, 1_024, CAPACITY))
        self.notices_s = number / rng.choice((TICK_S, LARGE_FLEET_NOTICES_S))
        self.capacity = capacity
        self.trackers = [
            Tracker(capacity, LIMIT // 2, rng=Random(rng.random())) for _ in range(number)
        ]
        self.reporters = [
            self._make_reporter(n, tracker) for n, tracker in enumerate(self.trackers)
        ]
        self.everywhere = everywhere = list(range(number))
        seen_by = [everywhere, everywhere, rng.sample(everywhere, min(number, 5)), everywhere[:1]]
        if self.is_crowded:
            seen_by = [everywhere]
        self.hot = [
            Key(
                f"hot {n}",
                LIMIT * rng.choice((1.25, 1.25, rng.uniform(1.25, 4))),
                HOT_AT_S + rng.random(),
                rng.choice(seen_by),
            )
            for n in range(rng.choice((1, 2)))
        ]
        warm = [
            Key(f"warm {n}", 0.45 * LIMIT * rng.random(), 0.0, rng.choice(seen_by))
            for n in range(8 if self.is_beyond_budget else 1)
        ]
        self.keys = [*self.hot, *warm]
        self.cold_rate_s = rng.uniform(500, 4_000)
        self.cold_keys = round(self.cold_rate_s * rng.uniform(0.05, 3))
        self.outcome = Outcome(self.is_crowded)

    def _make_bus(self) -> Bus:
        return Bus()

    def _make_reporter(self, number: int, tracker: Tracker) -> Reporter:
        heard = self._heard_by(number)
        name = f"s{number}-{self.seed}"
        return Reporter(name, tracker, self.bus, heard, self.clock, SETTINGS)

    def _heard_by(self, _server: int) -> reports.Fleet:
        """What a server hears of the fleet."""
        return self.registry

    def _allowed_s(self, _key: Key) -> float:
        """How soon the leader must have found a hot key."""
        return FOUND_IN_S

    def _is_whole(self, _key: Key, _now_s: float) -> bool:
        """Whether the latest reports of a key arrived, so that its estimate is to be right."""
        return True

    async def run(self) -> Outcome:
        spread_s: dict[str, float] = {}
        for tick in range(round(LASTS_S / TICK_S)):
            self._write(tick * TICK_S)
            self._check_accuracy(await self._turn(spread_s))
        self._check(spread_s)
        if len(self.trackers) <= 20:
            await self._cool_down()
        return self.outcome

    def _write(self, now_s: float) -> None:
        """The writes of the next tick. Writes of a key come in random order to random servers."""
        rng, writes = self.rng, list[tuple[int, str]]()
        for key in self.keys:
            share_s = min(max(now_s + TICK_S - key.hot_at_s, 0.0), TICK_S)
            for _ in range(_poisson(key.rate_s * share_s, rng)):
                writes.append((rng.choice(key.servers), key.name))
        number, every = len(self.trackers), self.cold_keys
        for _ in range(_poisson(self.cold_rate_s * TICK_S, rng)):
            writes.append((int(rng.random() * number), f"cold {int(rng.random() * every)}"))
        if self.is_crowded:
            for n in range(number):
                writes += [(n, f"own {n} {own}") for own in rng.choices(OWN, k=OWN_WRITES)]
        rng.shuffle(writes)
        for server, name in writes:
            self.trackers[server].record(name)

    async def _turn(self, spread_s: dict[str, float]) -> list[WindowHeat]:
        self.registry.deliver()
        await self.clock.advance(TICK_S)
        for reporter in self.reporters:
            await reporter.run_once()
        observation = await self.watch.observe()
        for decision in self.policy.decide(observation):
            layout = self.registry.view.layout(decision.key)
            now_ms = int(self.clock.now_s() * 1000)
            assert decision.value is not None
            longer = layout.then(now_ms, decision.value)
            self.registry.view.layouts[decision.key] = longer
            self.registry.view.spread.note(decision.key, layout, longer)
            self.registry.view.version += 1
            spread_s.setdefault(decision.key, self.clock.now_s() - self.start_s)
        return observation.windows

    def _check_accuracy(self, windows: list[WindowHeat]) -> None:
        """Estimates count once every server had two whole windows since the key got hot."""
        now_s = self.clock.now_s() - self.start_s
        for window in windows:
            for key in self.hot if window.complete and not self.is_beyond_budget else ():
                is_due = now_s >= key.hot_at_s + PRECISE_AFTER_S and self._is_whole(key, now_s)
                if is_due and key.name in window.keys:
                    error = window.keys[key.name].write_units_s / key.rate_s - 1
                    off = f"an estimate was off by {error:.0%}"
                    self.outcome.check("estimates within 20 %", abs(error) <= ACCURACY, off)

    def _check(self, spread_s: dict[str, float]) -> None:
        names, outcome = {key.name for key in self.hot}, self.outcome
        for n in range(self.cold_keys):
            name = f"cold {n}"
            outcome.check("cold keys left alone", name not in spread_s, f"{name} was spread")
        for key in self.keys:
            if key.name not in names:
                spread = f"{key.name}, below half the limit, was spread"
                outcome.check("cold keys left alone", key.name not in spread_s, spread)
        for key in self.hot if not self.is_beyond_budget else ():
            found_s = spread_s.get(key.name, float("inf")) - key.hot_at_s
            seen = f"{key.rate_s:,.0f} writes/s on {len(key.servers)} servers"
            late = f"{key.name} with {seen} was found after {found_s:.1f} s"
            in_time = found_s <= self._allowed_s(key)
            outcome.check(self.found, in_time, late)
        outcome.events["watched"] = len(self.watch._watchlist.taus)

    async def _cool_down(self) -> None:
        for _ in range(COLD_TICKS):
            await self._turn({})
        watched = list(self.watch._watchlist.taus)
        self.outcome.check("lists of watched keys that end", not watched, f"{watched} are watched")
        self.outcome.events["cooled down"] += 1


def _poisson(mean: float, rng: Random) -> int:
    """A random number of events, as independent events come."""
    if mean > 50:
        return max(round(rng.gauss(mean, mean**0.5)), 0)
    count, left = 0, mean
    while (left := left - rng.expovariate(1.0)) > 0:
        count += 1
    return count


async def _run(fleet: Fleet) -> Outcome:
    budget = 25.0 if fleet.is_beyond_budget else leader.ENTRIES_S
    with (
        patch.object(leader, "ENTRIES_S", budget),
        patch.object(leader, "NOTICES_S", fleet.notices_s),
    ):
        return await fleet.run()


def play(seed: int, make: Callable[[int], Fleet] = Fleet) -> Outcome:
    """Run one fleet, and count what was right."""
    coroutine = _run(make(seed))
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome


def simulate(seed: int, make: Callable[[int], Fleet] = Fleet) -> Outcome:
    """Run one fleet. Raises `Violation` if anything was not right."""
    outcome = play(seed, make)
    if outcome.violations:
        raise Violation(outcome)
    return outcome
