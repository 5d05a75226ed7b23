"""The trace through every lane at once: one pass, and no more memory than the lanes need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from heatsink.dynamo.partitions import token_of
from heatsink.errors import InvalidSetting

from .lane import REMEDIES, Lane, Pace, Remedy
from .settings import PlanSettings
from .tally import Cost, Minute, cost_of
from .trace import Trace

TOKENS_KEPT = 1_000_000
PROGRESS_REQUESTS = 10_000


class Outcome(msgspec.Struct, frozen=True):
    """What became of the trace under one remedy; counts are of all requests, not of the sample.

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
    partitions: int
    partitions_max: int
    cost: Cost
    minutes: list[Minute]

    @property
    def throttled_share(self) -> float:
        return self.throttled / self.requests

    @property
    def cost_per_million(self) -> float:
        """Dollars on demand for a million requests that were served, in requests of a month."""
        served = self.requests - self.throttled
        return self.cost.on_demand / served if served else 0.0


class Replay(msgspec.Struct, frozen=True):
    name: str
    weight: int
    span_s: float
    settings: PlanSettings
    outcomes: list[Outcome]


def replay(
    trace: Trace,
    settings: PlanSettings,
    seed: int,
    remedies: Iterable[Remedy] = REMEDIES,
    progress: Callable[[float], object] = lambda _: None,
) -> Replay:
    pace, lanes = Pace(trace.weight), list[Lane]()
    tokens: dict[str, int] = {}
    start_s = now_s = 0.0
    for number, request in enumerate(trace.requests()):
        now_s, key, _, _ = request
        if not lanes:
            start_s = now_s
            lanes = [Lane(each, settings, pace, now_s, Random(seed)) for each in remedies]
        token = tokens.get(key)
        if token is None:
            if len(tokens) >= TOKENS_KEPT:
                tokens.clear()
            token = tokens[key] = token_of(key)
        for lane in lanes:
            lane.take(request, token)
        if number % PROGRESS_REQUESTS == 0:
            progress(trace.done())
    if not lanes:
        raise InvalidSetting(f"trace {trace.name!r} has no requests: there is nothing to replay")
    span_s = now_s - start_s
    outcomes = [_outcome(lane, now_s, span_s, pace.weight, settings) for lane in lanes]
    return Replay(trace.name, pace.weight, span_s, settings, outcomes)


def _outcome(
    lane: Lane, end_s: float, span_s: float, weight: int, settings: PlanSettings
) -> Outcome:
    lane.end(end_s)
    minutes, spreading = lane.minutes, lane.spreading
    return Outcome(
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
        partitions=len(lane.table.map),
        partitions_max=lane.partitions_max,
        cost=cost_of(minutes, weight, span_s, settings.prices),
        minutes=minutes,
    )
