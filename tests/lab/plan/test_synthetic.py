from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import InvalidSetting
from heatsink.lab.plan.traces import MIDNIGHT_S, SHAPES, SyntheticLoad, SyntheticTrace
from heatsink.testing.traffic import HEAD, Zipf

SMALL = SyntheticLoad(keys=1_000, skew=1.1, peak=2.0, trough=0.2, read_share=0.7, hours=24)


@pytest.mark.parametrize("requests_max", [10**6, 20_000], ids=["each for itself", "each for many"])
def test_a_trace_has_the_parameters_it_was_made_with(requests_max: int) -> None:
    trace = SyntheticTrace(SMALL, requests_max, seed=1)
    requests = list(trace.requests())
    assert len(requests) * trace.weight == pytest.approx(SMALL.total, rel=0.02)
    assert [one.time_s for one in requests] == sorted(one.time_s for one in requests)
    reads = sum(not one.is_write for one in requests)
    assert reads / len(requests) == pytest.approx(SMALL.read_share, abs=0.01)
    hottest, count = Counter(one.key for one in requests).most_common(1)[0]
    assert hottest == "key-0"
    assert count / len(requests) == pytest.approx(Zipf(1_000, 1.1).share(0), rel=0.03)
    reads_of_it = sum(not one.is_write for one in requests if one.key == hottest)
    assert reads_of_it / count == pytest.approx(SMALL.read_share, abs=0.02)
    hours = Counter(int((one.time_s - MIDNIGHT_S) / 3_600) for one in requests)
    assert hours[12] / hours[0] == pytest.approx(1 / SMALL.trough, rel=0.1)


def test_a_load_with_more_requests_than_wanted_is_sampled() -> None:
    assert SyntheticTrace(SMALL, 10**9, seed=1).weight == 1
    trace = SyntheticTrace(SMALL, 10_000, seed=1)
    assert trace.weight == -(-SMALL.total // 10_000)
    assert len(list(trace.requests())) <= 10_000


@pytest.mark.parametrize("requests_max", [1_000, 10**9])
def test_a_seed_gives_the_same_trace_and_another_one_another(requests_max: int) -> None:
    one, same, other = (
        list(islice(SyntheticTrace(SMALL, requests_max, seed).requests(), 500))
        for seed in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.parametrize(
    "wrong", [{"keys": 0}, {"skew": -1}, {"peak": 0}, {"trough": 2}, {"read_share": 1.1}]
)
def test_a_load_that_cannot_be_is_refused_by_its_field(wrong: dict[str, float]) -> None:
    (field,) = wrong
    with pytest.raises(InvalidSetting, match=f"^{field} must be"):
        SyntheticLoad(**wrong)  # type: ignore[arg-type]


def test_published_loads_are_as_published() -> None:
    """OSDI 2020's table says of cluster 52: 24.25 kqps, alpha 1.2117, 20 + 273 bytes, 32.6 each."""
    load = SHAPES["twitter-52"].load(hours=1)
    assert (load.peak, load.trough, load.skew) == (24_250, 1.0, 1.2117)
    assert load.item_bytes == 293
    assert load.keys == pytest.approx(24_250 * 7 * 86_400 / 32.6, rel=1e-6)
    assert load.read_share == pytest.approx(0.93)


@given(st.integers(1, 3 * HEAD), st.floats(0, 3), st.floats(0, 1, exclude_max=True))
def test_every_rank_is_one_of_the_keys(keys: int, skew: float, chance: float) -> None:
    assert 0 <= Zipf(keys, skew).at(chance) < keys


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.0000001, 1.7])
def test_ranks_beyond_the_table_are_drawn_by_the_same_law(skew: float) -> None:
    keys = 3 * HEAD
    weights = [rank**-skew for rank in range(1, keys + 1)]
    zipf, beyond = Zipf(keys, skew), sum(weights[: 2 * HEAD]) / sum(weights)
    assert zipf.share(0) == pytest.approx(weights[0] / sum(weights), rel=1e-9)
    assert zipf.at(beyond - 1e-6) < 2 * HEAD <= zipf.at(beyond + 1e-5)


@pytest.mark.parametrize("hours", [0.5, 1, 6, 23])
def test_a_load_of_less_than_a_day_has_its_peak_in_its_middle(hours: float) -> None:
    load = SyntheticLoad(keys=10, peak=1.0, trough=0.2, hours=hours)
    trace = SyntheticTrace(load, 10**6, seed=1)
    times_s = [request.time_s - MIDNIGHT_S for request in trace.requests()]
    assert load.rate(load.start_s + hours * 1_800) == pytest.approx(load.peak)
    assert sum(times_s) / len(times_s) == pytest.approx(12 * 3_600, rel=0.02)
    assert min(times_s) >= load.start_s
    assert len(times_s) * trace.weight == pytest.approx(load.total, rel=0.1)
