from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.emulator.capacity.limits import SplitSettings, TableCapacity
from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.rows import token_of
from heatsink.emulator.units import write_units
from heatsink.errors import InvalidSetting
from heatsink.lab.plan.findings import report_of
from heatsink.lab.plan.lane import NOTHING, REMEDIES, Remedy
from heatsink.lab.plan.replay import ReplayOutcome, replay
from heatsink.lab.plan.settings import PlanSettings, Prices
from heatsink.lab.plan.traces import MIDNIGHT_S, SyntheticLoad, SyntheticTrace, TraceRequest
from heatsink.reads.policy import NearRules
from heatsink.spread.policy import BucketRules

from .driving import Recorded

pytestmark = pytest.mark.slow("replayed days")

FURTHER = pytest.mark.full("the remedy with buckets has most to lose in a sample")
NAMED = {remedy.name: remedy for remedy in REMEDIES}
TENTH = PlanSettings(
    split=SplitSettings(write_units=100, read_units=300, split_after_s=10),
    buckets=BucketRules(bucket_units_s=80, cool_down_s=30),
    partitions=64,
)


def evenly(
    keys: Iterable[str], per_s: float, seconds: float, is_write: bool = True, size: int = 100
) -> list[TraceRequest]:
    """Requests for these keys in turn, again and again."""
    names = list(keys)
    total = int(per_s * seconds)
    return [
        TraceRequest(MIDNIGHT_S + number / per_s, names[number % len(names)], is_write, size)
        for number in range(total)
    ]


def outcome(
    requests: list[TraceRequest], remedy: str | Remedy = NOTHING, settings: PlanSettings = TENTH
) -> ReplayOutcome:
    chosen = NAMED[remedy] if isinstance(remedy, str) else remedy
    return replay(Recorded(requests), settings, seed=1, remedies=[chosen]).outcomes[0]


def test_one_hot_key_is_held_to_what_a_partition_takes() -> None:
    found = outcome(evenly(["hot"], 400, 20))
    assert found.requests == 8_000
    assert found.write_units == pytest.approx(100 + 20 * 100, abs=2)
    assert found.throttled == 8_000 - found.write_units
    assert found.partitions == 64


def test_spreading_gives_a_hot_key_the_buckets_that_production_would() -> None:
    """390 units/s at 80 a bucket are 5."""
    found = outcome(evenly(["hot"], 390, 20), "spread")
    assert (found.keys_spread, found.buckets_max) == (1, 5)
    assert found.bucket_hours == pytest.approx(4 * 20 / 3_600, rel=0.1)
    late_s = 0.8  # a key on the rise is reported early, and half a second later its epoch begins
    assert found.throttled < 390 * late_s


def test_a_key_that_is_throttled_on_its_buckets_gets_more() -> None:
    """Five buckets on four partitions: two share one, which is too much for it."""
    few = msgspec.structs.replace(TENTH, partitions=4)
    assert outcome(evenly(["hot"], 390, 20), "spread", few).buckets_max > 5


def test_what_has_cooled_down_gets_its_one_bucket_back() -> None:
    hot, cold = evenly(["hot"], 400, 10), evenly(["hot"], 4, 120)
    later = [each._replace(time_s=each.time_s + 10) for each in cold]
    found = outcome(hot + later, "spread")
    assert found.bucket_hours < 4 * 60 / 3_600


def test_a_long_silence_in_the_trace_is_passed_over() -> None:
    hot = evenly(["hot"], 400, 5)
    later = [each._replace(time_s=each.time_s + 40 * 86_400) for each in hot]
    found = outcome(hot + later, "spread")
    assert found.requests == 4_000
    assert [minute.number for minute in found.minutes] == [0, 40 * 1_440]


@pytest.mark.parametrize(
    ("all_buckets", "units"), [(True, 5 * 0.5), (False, 0.5)], ids=["a page", "by id"]
)
def test_a_read_of_a_spread_key_asks_all_its_buckets_or_one(
    all_buckets: bool, units: float
) -> None:
    writes = evenly(["hot"], 390, 10)
    reads = evenly(["hot"], 10, 5, is_write=False)
    later = [each._replace(time_s=each.time_s + 10) for each in reads]
    settings = PlanSettings(
        split=TENTH.split, buckets=TENTH.buckets, partitions=64, all_buckets=all_buckets
    )
    found = outcome(writes + later, "spread", settings)
    assert found.read_units == 50 * units


def test_a_read_of_all_buckets_fails_with_any_of_them() -> None:
    """A neighbour of one of the buckets uses up what their partition may do."""
    partition = token_of("hot#0") * 64 // SPACE
    neighbour = next(key for key in map(str, count()) if token_of(key) * 64 // SPACE == partition)
    writes = evenly(["hot"], 390, 10)
    reads = evenly([neighbour] * 99 + ["hot"], 2_000, 10, is_write=False)
    later = [each._replace(time_s=each.time_s + 10) for each in reads]
    by_id = msgspec.structs.replace(TENTH, all_buckets=False)
    of_pages, of_ids = (
        outcome(writes + later, "spread", settings).throttled for settings in (TENTH, by_id)
    )
    assert of_pages - of_ids > 0.5 * sum(each.key == "hot" for each in reads)


def test_what_a_remedy_adds_or_saves_is_told_apart_from_what_is_throttled() -> None:
    """Reads of five buckets cost five times as much; throttled writes cost nothing."""
    prices = Prices(million_writes=0.0, million_reads=1.0)
    settings = PlanSettings(split=TENTH.split, buckets=TENTH.buckets, partitions=64, prices=prices)
    later = [each._replace(time_s=each.time_s + 10) for each in evenly(["hot"], 10, 5, False)]
    found = outcome(evenly(["hot"], 390, 10) + later, "spread", settings)
    assert found.throttled > 0
    assert found.cost_factor == pytest.approx(5)
    near = outcome(evenly(["hot"], 500, 10, False), "absorb", settings)
    assert near.cost_factor == pytest.approx(1 - near.absorbed / near.requests)


def test_absorbing_loads_a_hot_key_as_often_as_servers_need_it_fresh() -> None:
    reads = evenly(["hot"], 1_000, 10, is_write=False)
    settings = PlanSettings(servers=4, fresh_for=0.5, stale_for=5.0)
    found = outcome(reads, "absorb", settings)
    loads = found.requests - found.absorbed
    assert 4 * 10 / 0.5 <= loads <= 1.2 * 4 * 10 / 0.5
    assert found.read_units == loads * 0.5


def test_a_fleet_that_is_large_keeps_hot_keys_longer() -> None:
    reads = evenly(["hot"], 1_000, 20, is_write=False)
    few = NearRules(hot_reads_s=500, loads_s=10, cool_down_s=30)
    settings = PlanSettings(servers=20, near=few)
    found = outcome(reads, "absorb", settings)
    soon = outcome(reads, "absorb", PlanSettings(servers=20))
    assert found.absorbed > soon.absorbed


def test_a_write_is_seen_at_once_by_the_server_it_came_through() -> None:
    both = [
        request
        for read in evenly(["hot"], 100, 10, is_write=False)
        for request in (read, read._replace(is_write=True))
    ]
    settings = PlanSettings(servers=1, fresh_for=5.0)
    assert outcome(both, "absorb", settings).absorbed == 0


def test_readers_get_what_is_stale_while_the_store_is_throttled() -> None:
    """A key that is kept near is served for `stale_for` although no load succeeds."""
    settings = PlanSettings(
        split=SplitSettings(read_units=1), servers=1, fresh_for=0.1, stale_for=60.0, partitions=1
    )
    others = evenly([f"cold-{number}" for number in range(50)], 50, 10, is_write=False)
    hot = evenly(["hot"], 50, 10, is_write=False)
    both = sorted(hot + others)
    assert outcome(hot, "absorb", settings).throttled == 0
    found = outcome(both, "absorb", settings)
    assert 0 < found.throttled < len(others)


def test_adaptive_capacity_splits_a_partition_with_several_hot_keys() -> None:
    settings = PlanSettings(split=TENTH.split, partitions=1)
    load = evenly([f"key-{number}" for number in range(8)], 200, 120)
    fixed, adaptive = (outcome(load, name, settings) for name in ("nothing", "adaptive"))
    assert fixed.partitions == 1
    assert adaptive.partitions > 1
    assert adaptive.throttled < 0.5 * fixed.throttled


def test_a_provisioned_table_has_a_limit_of_its_own() -> None:
    settings = PlanSettings(capacity=TableCapacity(writes=50, reads=50), partitions=1)
    found = outcome(evenly(["a", "b"], 100, 60), "adaptive", settings)
    assert found.write_units == pytest.approx(50 * 60, rel=0.05)


@pytest.mark.parametrize(
    "name",
    [
        "spread",
        *(pytest.param(name, marks=FURTHER) for name in ("nothing", "absorb")),
    ],
)
def test_a_sample_says_what_the_whole_says(name: str) -> None:
    load = SyntheticLoad(keys=50, skew=1.2, peak=1_000, trough=1.0, read_share=0.5, hours=0.02)
    whole, sample = (
        replay(SyntheticTrace(load, most, seed=1), TENTH, seed=1, remedies=[NAMED[name]])
        for most in (10**6, 7_200)
    )
    assert (whole.survey.weight, sample.survey.weight) == (1, 10)
    (of_whole,), (of_sample,) = whole.outcomes, sample.outcomes
    assert of_sample.requests == pytest.approx(of_whole.requests, rel=0.02)
    assert of_sample.throttled_share == pytest.approx(of_whole.throttled_share, rel=0.1, abs=0.01)
    assert of_sample.absorbed == pytest.approx(of_whole.absorbed, rel=0.1)
    assert of_sample.cost.on_demand == pytest.approx(of_whole.cost.on_demand, rel=0.1)


def test_a_small_sample_throttles_as_much() -> None:
    whole = SyntheticLoad(keys=50, skew=1.2, peak=1_000, trough=1.0, hours=0.02)
    sample = msgspec.structs.replace(whole, hours=2)
    of_whole, of_sample = (
        replay(SyntheticTrace(load, most, seed=1), TENTH, seed=1, remedies=[NOTHING])
        for load, most in ((whole, 10**6), (sample, 20_000))
    )
    assert (of_whole.survey.weight, of_sample.survey.weight) == (1, 360)
    share = of_whole.outcomes[0].throttled_share
    assert of_sample.outcomes[0].throttled_share == pytest.approx(share, rel=0.05)


def test_a_month_costs_its_units_or_its_hours() -> None:
    """A day with a write of 2 KB and a read every ten seconds: 8,640 × 2 and 8,640 × 0.5 units."""
    day = sorted(
        evenly(["a"], 0.1, 86_400, size=2_048) + evenly(["b"], 0.1, 86_400, is_write=False)
    )
    prices = Prices(million_writes=1.0, million_reads=0.1, target=0.5)
    found = outcome(day, settings=PlanSettings(prices=prices))
    assert found.throttled == 0
    paid = (8_640 * 2 * 1.0 + 8_640 * 0.5 * 0.1) / 1e6
    assert found.cost_factor == 1.0
    assert found.cost.on_demand == pytest.approx(30 * paid, rel=1e-3)
    hourly = (0.2 * prices.write_unit_hour + 0.05 * prices.read_unit_hour) / 0.5
    assert found.cost.provisioned == pytest.approx(720 * hourly, rel=0.01)


def mixed(per_s: float, seconds: float) -> list[TraceRequest]:
    """70 % writes, over many keys."""
    even = evenly(count_of("k", 97), per_s, seconds)
    return [each._replace(is_write=number % 10 < 7) for number, each in enumerate(even)]


@pytest.mark.parametrize("seconds", [3, 20, 60, 60.5, 90, 600])
@pytest.mark.parametrize("weight", [1, 50])
def test_a_month_of_the_same_traffic_costs_the_same_however_short_the_trace(
    seconds: float, weight: int
) -> None:
    trace = Recorded(mixed(50, seconds))
    trace.weight = weight
    found = replay(trace, PlanSettings(), seed=1, remedies=[NOTHING])
    cost, prices = found.outcomes[0].cost, Prices()
    assert found.outcomes[0].throttled == 0
    writes_s, reads_s = weight * 50 * 0.7, weight * 50 * 0.3 * 0.5
    paid = (writes_s * prices.million_writes + reads_s * prices.million_reads) / 1e6
    assert cost.on_demand == pytest.approx(30 * 86_400 * paid, rel=0.02)
    assert cost.plain == cost.on_demand
    hourly = writes_s * prices.write_unit_hour + reads_s * prices.read_unit_hour
    assert cost.provisioned == pytest.approx(720 * hourly / prices.target, rel=0.02)
    assert found.survey.peak_writes_s == pytest.approx(writes_s, rel=0.02)


def test_a_busy_part_of_a_minute_at_the_end_counts_with_its_real_length() -> None:
    calm, busy = evenly(["a"], 10, 60), evenly(["a"], 40, 15)
    later = [each._replace(time_s=each.time_s + 60) for each in busy]
    found = replay(Recorded(calm + later), PlanSettings(), seed=1, remedies=[NOTHING])
    assert found.survey.peak_writes_s == pytest.approx(40, rel=0.02)
    hourly = 40 * Prices().write_unit_hour / Prices().target
    assert found.outcomes[0].cost.provisioned == pytest.approx(720 * hourly, rel=0.02)


def test_one_request_in_the_last_minute_is_no_high_rate() -> None:
    """A write every 50 s, the last of them at the start of a minute."""
    found = replay(Recorded(evenly(["a"], 0.02, 350)), PlanSettings(), seed=1, remedies=[NOTHING])
    assert found.survey.peak_writes_s <= 2 / 60


def test_the_last_hour_counts_for_the_part_that_the_trace_covers() -> None:
    hour, busy = evenly(["a"], 0.5, 3_600), evenly(["a"], 2, 900)
    later = [each._replace(time_s=each.time_s + 3_600) for each in busy]
    hourly = (0.5 * 4 + 2 * 1) / 5 * Prices().write_unit_hour / Prices().target
    assert outcome(hour + later, settings=PlanSettings()).cost.provisioned == pytest.approx(
        720 * hourly, rel=0.02
    )


@pytest.mark.parametrize("seconds", [1, 20, 60.1, 600])
def test_pictures_show_the_rate_of_a_trace_of_any_length(seconds: float) -> None:
    found = replay(Recorded(mixed(100, seconds)), PlanSettings(), seed=1, remedies=[NOTHING])
    (chart,) = report_of(found).charts
    served, throttled = chart.series
    assert len(served.y) >= 8
    assert served.y == pytest.approx([100] * len(served.y), rel=0.11)
    assert set(throttled.y) == {0}


def test_silence_in_the_trace_is_a_line_at_zero() -> None:
    later = [each._replace(time_s=each.time_s + 30) for each in mixed(100, 10)]
    found = replay(Recorded(mixed(100, 10) + later), PlanSettings(), 1, [NOTHING])
    served = report_of(found).charts[0].series[0]
    seconds = [float(each) for each in served.x]
    silent = [y for x, y in zip(seconds, served.y, strict=True) if 10 <= x < 30]
    assert len(silent) >= 10
    assert set(silent) == {0}


def test_provisioned_capacity_costs_what_it_is() -> None:
    settings = PlanSettings(capacity=TableCapacity(writes=100, reads=200))
    found = outcome(evenly(["a"], 1, 60), settings=settings)
    assert found.cost.provisioned == pytest.approx(720 * (100 * 0.00065 + 200 * 0.00013))


def test_the_table_begins_with_twice_what_the_busiest_minute_needs() -> None:
    load = [
        *evenly(count_of("k", 400), 100, 60),
        *[each._replace(time_s=each.time_s + 60) for each in evenly(count_of("k", 400), 300, 60)],
    ]
    settings = PlanSettings(split=TENTH.split)
    found = replay(Recorded(load), settings, seed=1, remedies=[NOTHING])
    assert found.survey.peak_writes_s == 300
    assert found.partitions == 6


def count_of(name: str, number: int) -> list[str]:
    return [f"{name}-{each}" for each in range(number)]


def test_minutes_count_what_happened_in_them() -> None:
    calm, hot = evenly(["hot"], 10, 60), evenly(["hot"], 400, 10)
    later = [each._replace(time_s=each.time_s + 120) for each in hot]
    found = outcome(calm + later)
    assert [(one.number, one.requests) for one in found.minutes] == [(0, 600), (2, 4_000)]
    assert found.worst_minute.number == 2
    assert found.throttled == found.worst_minute.throttled > 0


def test_the_same_seed_gives_the_same_outcomes() -> None:
    load = SyntheticLoad(keys=50, skew=1.2, peak=500, trough=1.0, hours=0.01)
    first, second = (replay(SyntheticTrace(load, 10**6, 3), TENTH, seed=3) for _ in range(2))
    assert first == second


def test_progress_grows_to_the_whole() -> None:
    seen: list[float] = []
    load = SyntheticLoad(keys=50, peak=500, trough=1.0, hours=0.05)
    replay(SyntheticTrace(load, 10**6, 1), TENTH, 1, [NOTHING], seen.append)
    assert seen == sorted(seen)
    assert seen[-1] > 0.9


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 3), st.sampled_from("abc"), st.booleans(), st.integers(0, 9_000)),
        min_size=1,
        max_size=300,
    ),
    st.integers(1, 4),
)
def test_whatever_the_trace_no_remedy_serves_more_than_there_is(
    rows: list[tuple[float, str, bool, int]], partitions: int
) -> None:
    times = accumulate((gap for gap, *_ in rows), initial=MIDNIGHT_S)
    requests = [TraceRequest(time_s, *row[1:]) for time_s, row in zip(times, rows, strict=False)]
    plan = msgspec.structs.replace(TENTH, partitions=partitions)
    for found in replay(Recorded(requests), plan, seed=1).outcomes:
        assert found.requests == len(requests) == sum(one.requests for one in found.minutes)
        assert 0 <= found.throttled <= len(requests) - found.absorbed
        largest = max(write_units(request.size) for request in requests)
        seconds = requests[-1].time_s - requests[0].time_s + plan.split.ceiling_s
        assert found.write_units <= found.partitions * (100 * seconds + largest)
        assert found.cost.on_demand >= 0
        if not (found.remedy.spread or found.remedy.absorb):
            assert found.cost_factor == pytest.approx(1)


def test_a_trace_without_requests_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="'recorded' has no requests"):
        replay(Recorded([]), TENTH, seed=1)


def test_half_a_capacity_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="capacity needs both write and read units"):
        PlanSettings(capacity=TableCapacity(writes=5))
