"""What a trace asks for, before anything is refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from heatsink.dynamo.capacity import read_units, write_units
from heatsink.errors import InvalidSetting

from .settings import PlanSettings
from .tally import MINUTE_S
from .traces.trace import Request, Trace

PROGRESS_REQUESTS = 10_000
KEYS_COUNTED = 1_000_000  # the hottest is among the first that many, or there is none
Progress = Callable[[float], object]


class Survey(msgspec.Struct, frozen=True):
    """Counts and rates are of all requests, not of the sample; peaks are of the busiest minute."""

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

    def add(self, request: Request, minute: int, consistent: bool) -> None:
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
        raise InvalidSetting(f"trace {trace.name!r} has no requests: there is nothing to replay")
    hottest, count = max(counts.keys.items(), key=lambda item: item[1])
    # a minute that is not over yet is as busy as it was so far
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
