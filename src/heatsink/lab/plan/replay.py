"""Replays a trace through every lane at once, in no more memory than the lanes need.

A survey of the trace comes first. It counts all requests, before any lane throttles them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from heatsink.emulator.rows import token_of
from heatsink.emulator.units import read_units, write_units
from heatsink.errors import InvalidSetting

from .lane import REMEDIES, PlanLane, PlanStage, Remedy
from .settings import MINUTE_S, Minute, MonthlyCost, PlanSettings, cost_of
from .traces import Trace, TraceRequest

PROGRESS_REQUESTS = 10_000
KEYS_COUNTED = 1_000_000  # a hottest key would be among the first million
Progress = Callable[[float], object]
TOKENS_KEPT = 1_000_000
SURVEY_SHARE = 0.1  # of the time: for the progress bar


class Survey(msgspec.Struct, frozen=True):
    """Counts and rates of all requests, not of the sample; peaks are of the busiest minute."""

    weight: int
    requests: int
    reads: int
    start_s: float
    end_s: float
    peak_writes_s: float
    peak_reads_s: float
    hottest: str
    hottest_share: float

    @property
    def span_s(self) -> float:
        return self.end_s - self.start_s


class _Counts:
    def __init__(self) -> None:
        self.requests = self.reads = 0
        self.write_units: dict[int, float] = defaultdict(float)
        self.read_units: dict[int, float] = defaultdict(float)
        self.keys: dict[str, int] = {}

    def add(self, request: TraceRequest, minute: int, consistent: bool) -> None:
        self.requests += 1
        if request.is_write:
            self.write_units[minute] += write_units(request.size)
        else:
            self.reads += 1
            self.read_units[minute] += read_units(request.size, consistent)
        if request.key in self.keys or len(self.keys) < KEYS_COUNTED:
            self.keys[request.key] = self.keys.get(request.key, 0) + 1


def survey(trace: Trace, settings: PlanSettings, progress: Progress = lambda _: None) -> Survey:
    counts, start_s, request = _Counts(), 0.0, None
    for request in trace.requests():
        if not counts.requests:
            start_s = request.time_s
        minute = int((request.time_s - start_s) / MINUTE_S)
        counts.add(request, minute, settings.consistent_reads)
        if counts.requests % PROGRESS_REQUESTS == 0:
            progress(trace.done())
    if request is None:
        raise InvalidSetting(
            f"trace {trace.name!r} has no requests: there is nothing to replay", field="trace"
        )
    hottest, count = max(counts.keys.items(), key=lambda item: item[1])
    # the last minute may be incomplete: its rate is that of its part
    minute_s = min(max(request.time_s - start_s, 1.0), MINUTE_S)
    return Survey(
        weight=trace.weight,
        requests=trace.weight * counts.requests,
        reads=trace.weight * counts.reads,
        start_s=start_s,
        end_s=request.time_s,
        peak_writes_s=trace.weight * max(counts.write_units.values(), default=0.0) / minute_s,
        peak_reads_s=trace.weight * max(counts.read_units.values(), default=0.0) / minute_s,
        hottest=hottest,
        hottest_share=count / counts.requests,
    )


class ReplayOutcome(msgspec.Struct, frozen=True):
    """The result of a trace under one remedy; counts are of all requests, not of the sample.

    `bucket_hours` are those of buckets beyond the first of each key.
    """

    remedy: Remedy
    requests: int
    throttled: int
    absorbed: int
    worst_minute: Minute
    write_units: float
    read_units: float
    keys_spread: int
    buckets_max: int
    bucket_hours: float
    partitions_at_first: int
    partitions: int
    cost: MonthlyCost
    minutes: list[Minute]

    @property
    def throttled_share(self) -> float:
        return self.throttled / self.requests

    @property
    def cost_factor(self) -> float:
        """The cost of a served request, relative to its cost without any remedy."""
        return self.cost.on_demand / self.cost.plain if self.cost.plain else 1.0


class Replay(msgspec.Struct, frozen=True):
    """The result of a plan. The table started with `partitions` partitions."""

    name: str
    survey: Survey
    settings: PlanSettings
    partitions: int
    outcomes: list[ReplayOutcome]


def replay(
    trace: Trace,
    settings: PlanSettings,
    seed: int,
    remedies: Iterable[Remedy] = REMEDIES,
    progress: Progress = lambda _: None,
) -> Replay:
    """Read the trace twice: to survey it, and to replay it."""
    seen = survey(trace, settings, lambda done: progress(SURVEY_SHARE * done))
    partitions = settings.partitions_for(seen.peak_writes_s, seen.peak_reads_s)
    stage = PlanStage(trace.weight, seen.start_s, partitions)
    lanes = [PlanLane(each, settings, stage, Random(seed)) for each in remedies]
    tokens: dict[str, int] = {}
    for number, request in enumerate(trace.requests()):
        key = request.key
        token = tokens.get(key)
        if token is None:
            if len(tokens) >= TOKENS_KEPT:
                tokens.clear()
            token = tokens[key] = token_of(key)
        for lane in lanes:
            lane.take(request, token)
        if number % PROGRESS_REQUESTS == 0:
            progress(SURVEY_SHARE + (1 - SURVEY_SHARE) * trace.done())
    outcomes = [_outcome(lane, seen, settings) for lane in lanes]
    return Replay(trace.name, seen, settings, partitions, outcomes)


def _outcome(lane: PlanLane, seen: Survey, settings: PlanSettings) -> ReplayOutcome:
    lane.end(seen.end_s)
    minutes, spreading, weight = lane.minutes, lane.spreading, seen.weight
    return ReplayOutcome(
        remedy=lane.remedy,
        requests=weight * sum(minute.requests for minute in minutes),
        throttled=weight * sum(minute.throttled for minute in minutes),
        absorbed=weight * lane.absorbing.absorbed if lane.absorbing else 0,
        worst_minute=max(minutes, key=lambda minute: (minute.throttled, -minute.number)),
        write_units=weight * sum(minute.write_units for minute in minutes),
        read_units=weight * sum(minute.read_units for minute in minutes),
        keys_spread=len(spreading.keys) if spreading else 0,
        buckets_max=spreading.buckets_max if spreading else 1,
        bucket_hours=spreading.bucket_hours if spreading else 0.0,
        partitions_at_first=lane.partitions_at_first,
        partitions=len(lane.table.map),
        cost=cost_of(minutes, weight, seen.span_s, settings),
        minutes=minutes,
    )
