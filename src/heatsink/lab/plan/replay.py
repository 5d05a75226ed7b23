"""The trace through every lane at once: one pass, and no more memory than the lanes need."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec

from heatsink.dynamo.rows.tokens import token_of

from .lane import REMEDIES, Lane, Remedy, Stage
from .settings import PlanSettings
from .survey import PROGRESS_REQUESTS, Progress, Survey, survey
from .tally import Cost, Minute, cost_of
from .traces.trace import Trace

TOKENS_KEPT = 1_000_000
SURVEY_SHARE = 0.1  # of the time: for the progress bar


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
    partitions_at_first: int
    partitions: int
    cost: Cost
    minutes: list[Minute]

    @property
    def throttled_share(self) -> float:
        return self.throttled / self.requests

    @property
    def cost_factor(self) -> float:
        """What a request that is served costs, compared with its cost without any remedy."""
        return self.cost.on_demand / self.cost.plain if self.cost.plain else 1.0


class Replay(msgspec.Struct, frozen=True):
    """`survey` is what the trace asks for; `partitions` what the table began with."""

    name: str
    survey: Survey
    settings: PlanSettings
    partitions: int
    outcomes: list[Outcome]


def replay(
    trace: Trace,
    settings: PlanSettings,
    seed: int,
    remedies: Iterable[Remedy] = REMEDIES,
    progress: Progress = lambda _: None,
) -> Replay:
    """Twice through the trace: to see what it asks for, and to ask for it."""
    seen = survey(trace, settings, lambda done: progress(SURVEY_SHARE * done))
    partitions = settings.partitions_for(seen.peak_writes_s, seen.peak_reads_s)
    stage = Stage(trace.weight, seen.start_s, partitions)
    lanes = [Lane(each, settings, stage, Random(seed)) for each in remedies]
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


def _outcome(lane: Lane, seen: Survey, settings: PlanSettings) -> Outcome:
    lane.end(seen.end_s)
    minutes, spreading, weight = lane.minutes, lane.spreading, seen.weight
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
        partitions_at_first=lane.partitions_at_first,
        partitions=len(lane.table.map),
        cost=cost_of(minutes, weight, seen.span_s, settings),
        minutes=minutes,
    )
