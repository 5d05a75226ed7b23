"""Replays a trace through all lanes in one pass, in no more memory than the lanes need.

Before the replay, a survey reads the whole trace and counts its requests.
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
from .settings import MINUTE_S, MonthlyCost, Period, PlanSettings, cost_of, minutes_of
from .traces import Trace, TraceRequest

PROGRESS_REQUESTS = 10_000
KEYS_COUNTED = 1_000_000  # a hottest key would be among the first million
Progress = Callable[[float], object]
TOKENS_KEPT = 1_000_000
SURVEY_SHARE = 0.1  # of the time: for the progress bar
COVERED_S_MIN = 1.0
PART_S_MIN = 10.0  # of a last minute: the rate of a shorter part is mostly chance
PERIODS_S = (MINUTE_S, 30.0, 15.0, 10.0, 5.0, 2.0, 1.0, 0.5, 0.25, 0.1, 0.05)
PERIODS_MIN, PERIODS_ENOUGH = 8, 40  # that many points make a line, and a good one
REQUESTS_A_PERIOD = 10  # fewer would make the line jump


class Survey(msgspec.Struct, frozen=True):
    """Counts and rates of the whole load, even if the trace is a sample.

    Peaks are the rates of the busiest minute.
    """

    weight: int
    requests: int
    reads: int
    start_s: float
    end_s: float
    peak_writes_s: float
    peak_reads_s: float
    hottest: str
    hottest_share: float
    last_minute_s: float = MINUTE_S

    @property
    def covered_s(self) -> float:
        """The length of the trace in seconds, at least 1."""
        return max(self.end_s - self.start_s, COVERED_S_MIN)

    @property
    def period_s(self) -> float:
        """The length of the periods to count in: a minute, or less if the trace is short."""
        enough = self.requests / self.weight / REQUESTS_A_PERIOD
        longest_s = self.covered_s / min(max(enough, PERIODS_MIN), PERIODS_ENOUGH)
        return next((each for each in PERIODS_S if each <= longest_s), PERIODS_S[-1])


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

    def fill(self, minute: int, factor: float) -> None:
        """Scale the counts of a minute that the trace covers only in part, to a whole minute.

        `factor` is a minute divided by that part.
        """
        self.write_units[minute] *= factor
        self.read_units[minute] *= factor


def survey(trace: Trace, settings: PlanSettings, progress: Progress = lambda _: None) -> Survey:
    counts, start_s, minute, request = _Counts(), 0.0, 0, None
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
    last_s = _last_minute_s(request.time_s - start_s, counts.requests)
    counts.fill(minute, MINUTE_S / last_s)
    return Survey(
        weight=trace.weight,
        requests=trace.weight * counts.requests,
        reads=trace.weight * counts.reads,
        start_s=start_s,
        end_s=request.time_s,
        peak_writes_s=trace.weight * max(counts.write_units.values(), default=0.0) / MINUTE_S,
        peak_reads_s=trace.weight * max(counts.read_units.values(), default=0.0) / MINUTE_S,
        hottest=hottest,
        hottest_share=count / counts.requests,
        last_minute_s=last_s,
    )


def _last_minute_s(span_s: float, requests: int) -> float:
    """Return how many seconds of its last minute a trace covers, for the rate of that minute.

    The covered part ends where the next request would be due. If the part ended at the last
    request, a single request at the start of the minute would look like a high rate.
    """
    if span_s < MINUTE_S:
        return max(span_s, COVERED_S_MIN)
    due_s = span_s % MINUTE_S + span_s / max(requests - 1, 1)
    return min(max(due_s, PART_S_MIN), MINUTE_S)


class ReplayOutcome(msgspec.Struct, frozen=True):
    """The result of a trace under one remedy.

    Counts are those of the whole load, even if the trace is a sample. Only the counts in `minutes`,
    `periods` and `worst_minute` are those of the sample. `bucket_hours` leaves out the first bucket
    of each key. `periods` are as long as the survey's `period_s`. Minutes and periods without
    requests are left out.
    """

    remedy: Remedy
    requests: int
    throttled: int
    absorbed: int
    worst_minute: Period
    write_units: float
    read_units: float
    keys_spread: int
    buckets_max: int
    bucket_hours: float
    partitions_at_first: int
    partitions: int
    cost: MonthlyCost
    minutes: list[Period]
    periods: list[Period]

    @property
    def throttled_share(self) -> float:
        return self.throttled / self.requests

    @property
    def cost_factor(self) -> float:
        """The cost of the served requests, divided by what they would cost without a remedy.

        A table without a remedy may throttle some requests. Here it is priced as if it served
        them all.
        """
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
    """Replay the trace under each remedy, and return all outcomes.

    The trace is read twice: the first time to measure its peaks, the second time to replay it.
    """
    seen = survey(trace, settings, lambda done: progress(SURVEY_SHARE * done))
    partitions = settings.partitions_for(seen.peak_writes_s, seen.peak_reads_s)
    stage = PlanStage(trace.weight, seen.start_s, partitions, seen.period_s)
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
    minutes = minutes_of(lane.periods, seen.period_s, seen.last_minute_s)
    spreading, weight = lane.spreading, seen.weight
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
        cost=cost_of(minutes, weight, seen.covered_s, settings),
        minutes=minutes,
        periods=lane.periods,
    )
