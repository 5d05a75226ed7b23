from __future__ import annotations

from collections import Counter
from math import exp, lgamma, log
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.heat.count import NO_KEYS, Tracker
from heatsink.heat.fleet import Aggregator, interval
from heatsink.heat.heat import Heat, Report, WindowHeat


def report(server: str, window: int, writes: int, elapsed_s: float = 1.0, key: str = "k") -> Report:
    keys = {key: Heat(writes, writes)} if writes else {}
    return Report(server, window, elapsed_s, elapsed_s >= 1, 6, keys)


def complete(windows: list[WindowHeat]) -> list[WindowHeat]:
    return [window for window in windows if window.complete]


def test_the_fleets_rate_is_the_sum_of_all_servers() -> None:
    """The seeds' blind spot: ten servers with 90 writes/s each are 900."""
    aggregator = Aggregator(1.0)
    for n in range(10):
        aggregator.add(report(f"s{n}", 7, 90), now_s=8.0)
    (window,) = complete(aggregator.take(8.5))
    assert window.keys["k"].write_units_s == 900
    assert aggregator.servers == 10


def test_servers_that_did_not_list_a_key_bound_what_is_missing() -> None:
    aggregator = Aggregator(1.0)
    aggregator.add(report("a", 7, 90), 8.0)
    aggregator.add(report("b", 7, 0), 8.0)
    (window,) = complete(aggregator.take(8.5))
    assert window.keys["k"].bound_s == 5
    assert window.unreported_s == 10


@given(st.permutations([0, 1, 2, 3] * 2))
def test_repeats_and_order_change_nothing(order: list[int]) -> None:
    aggregator = Aggregator(1.0)
    for n in order:
        aggregator.add(report(f"s{n}", 7, 100), 8.0)
    (window,) = complete(aggregator.take(8.5))
    assert window.keys["k"].write_units_s == 400


def test_an_early_report_shows_at_once_and_is_replaced_by_the_final_one() -> None:
    aggregator = Aggregator(1.0)
    aggregator.add(report("a", 7, 800, elapsed_s=0.4), 7.4)
    (early,) = [window for window in aggregator.take(7.4) if not window.complete]
    assert early.keys["k"].write_units_s == 2_000
    aggregator.add(report("a", 7, 2_100), 8.0)
    aggregator.add(report("a", 7, 800, elapsed_s=0.4), 8.0)
    (final,) = complete(aggregator.take(8.5))
    assert final.keys["k"].write_units_s == 2_100


def test_a_key_that_speeds_up_counts_by_its_latest_rate_while_the_window_runs() -> None:
    aggregator = Aggregator(1.0)
    aggregator.add(report("a", 7, 400, elapsed_s=0.6), 7.6)
    aggregator.add(report("a", 7, 800, elapsed_s=0.7), 7.7)
    (early,) = [window for window in aggregator.take(7.7) if not window.complete]
    assert early.keys["k"].write_units_s == pytest.approx(4_000)
    aggregator.add(report("a", 7, 2_000), 8.0)
    (final,) = complete(aggregator.take(8.5))
    assert final.keys["k"].write_units_s == 2_000


def test_early_reports_of_different_keys_do_not_replace_each_other() -> None:
    aggregator = Aggregator(1.0)
    aggregator.add(report("a", 7, 400, elapsed_s=0.5, key="one"), 7.5)
    aggregator.add(report("a", 7, 400, elapsed_s=0.6, key="other"), 7.6)
    (early,) = [window for window in aggregator.take(7.6) if not window.complete]
    assert set(early.keys) == {"one", "other"}


def test_a_very_short_burst_is_not_blown_up() -> None:
    aggregator = Aggregator(1.0)
    aggregator.add(report("a", 7, 800, elapsed_s=0.01), 7.01)
    (early,) = [window for window in aggregator.take(7.01) if not window.complete]
    assert early.keys["k"].write_units_s == 3_200


@pytest.mark.parametrize("window", [1, 20])
def test_the_old_and_the_future_are_dropped(window: int) -> None:
    aggregator = Aggregator(1.0)
    assert not aggregator.add(report("a", window, 100), 10.0)


def test_a_late_report_counts_in_the_next_window() -> None:
    aggregator = Aggregator(1.0)
    aggregator.take(9.5)
    assert aggregator.add(report("a", 8, 100), 9.6)
    (window,) = complete(aggregator.take(10.5))
    assert window.keys["k"].write_units_s == 100


def test_a_server_counts_with_its_latest_report_until_the_next_one_is_overdue() -> None:
    """Servers report at different times of a second. No report is waited for, none counts twice."""
    aggregator = Aggregator(1.0)
    aggregator.add(report("a", 7, 90), 8.1)
    aggregator.add(report("b", 7, 90), 8.6)
    aggregator.add(report("a", 8, 50), 9.1)
    (window,) = complete(aggregator.take(9.4))
    assert window.keys["k"].write_units_s == 140
    (window,) = complete(aggregator.take(10.3))
    assert window.keys["k"].write_units_s == 50, "b is overdue"
    assert aggregator.servers == 1


reported = st.tuples(
    st.integers(0, 5), st.integers(0, 3), st.dictionaries(st.sampled_from("xyz"), st.integers(1, 9))
)


@given(st.lists(reported, max_size=30))
def test_the_sums_equal_the_latest_report_of_each_server(
    reports: list[tuple[int, int, dict[str, int]]],
) -> None:
    """The sums are kept up by adding and subtracting: they must not drift."""
    aggregator, latest = Aggregator(1.0), dict[int, tuple[int, dict[str, int]]]()
    for server, window, counts in reports:
        keys = {key: Heat(count, count) for key, count in counts.items()}
        added = aggregator.add(Report(f"s{server}", 7 + window, 1.0, True, 1, keys), 10.0)
        assert added is (server not in latest or window > latest[server][0])
        if added:
            latest[server] = window, counts
    (window_heat,) = complete(aggregator.take(11.0))
    true = Counter[str]()
    for _, counts in latest.values():
        true.update(counts)
    found = {key: heat.write_units_s for key, heat in window_heat.keys.items()}
    assert found == dict(true)


def test_a_running_window_lists_only_warm_keys_with_news() -> None:
    aggregator = Aggregator(1.0, listed_s=10, notable_s=100)
    aggregator.add(report("a", 7, 60), 8.1)
    assert all(window.complete for window in aggregator.take(8.15))
    aggregator.add(report("b", 7, 60), 8.2)
    (running,) = [window for window in aggregator.take(8.25) if not window.complete]
    assert running.keys["k"].write_units_s == 120
    assert [window for window in aggregator.take(8.3) if not window.complete] == []


def test_silence_is_a_complete_window_so_that_keys_cool() -> None:
    aggregator = Aggregator(1.0)
    (window,) = aggregator.take(9.5)
    assert (window.window, window.complete, window.keys) == (8, True, {})
    assert aggregator.take(9.6) == []


NOW_S = 1_790_000_000.5


@pytest.mark.parametrize(("before_s", "after_s"), [(1.0, 5.0), (5.0, 0.25)])
def test_windows_get_another_length_while_reports_come(before_s: float, after_s: float) -> None:
    """A server that is late to follow is ignored; nothing before the change counts as silence."""
    aggregator = Aggregator(before_s)
    aggregator.add(report("a", int(NOW_S / before_s), 100), NOW_S)
    aggregator.adopt(after_s, NOW_S)
    assert aggregator.take(NOW_S) == []
    assert not aggregator.add(report("late", int(NOW_S / before_s), 100), NOW_S)
    window = int(NOW_S / after_s)
    ends_s = (window + 1) * after_s
    counts = {"k": Heat(900, 900)}
    assert aggregator.add(Report("a", window, ends_s - NOW_S, True, 6, counts), ends_s)
    (seen,) = complete(aggregator.take(ends_s + 0.4))
    assert seen.start_s == window * after_s
    assert seen.keys["k"].write_units_s == pytest.approx(900 / (ends_s - NOW_S))


@pytest.mark.parametrize(
    "hostile",
    [
        b'{"server":"a","window":1,"elapsed_s":1,"final":true,"tau":1,"keys":{"k":[-5]}}',
        b'{"server":"a","window":1,"elapsed_s":1,"final":true,"tau":1,"keys":{"k":[1e309]}}',
        b'{"server":"a","window":1,"elapsed_s":1,"final":true,"tau":1,"keys":{"k":[9999999999999]}}',
        b'{"server":"","window":1,"elapsed_s":1,"final":true,"tau":1,"keys":{}}',
        b'{"server":"a","window":1,"elapsed_s":0,"final":true,"tau":1,"keys":{}}',
        b'{"server":"a","window":"1","elapsed_s":1,"final":true,"tau":1,"keys":{}}',
    ],
)
def test_a_hostile_report_does_not_parse(hostile: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(hostile, type=Report)


def test_a_window_whose_last_report_is_late_has_no_bound() -> None:
    aggregator = Aggregator(1.0)
    aggregator.add(report("a", 7, 90), 8.0)
    aggregator.add(report("b", 7, 800, elapsed_s=0.4), 8.0)  # it raced, and no more was heard
    (window,) = complete(aggregator.take(8.5))
    assert window.unreported_s is None
    assert window.keys["k"].bound_s is None
    assert window.hottest(1).unreported_s is None
    for server in "ab":
        aggregator.add(report(server, 8, 90), 9.0)
    (window,) = complete(aggregator.take(9.5))
    assert window.unreported_s == 10, "both have said all"


def test_a_server_that_has_gone_is_missed_for_a_while_only() -> None:
    aggregator, bounds = Aggregator(1.0), []
    for server in "ab":
        aggregator.add(report(server, 10, 90), 11.0)
    for number in range(11, 20):
        bounds += [heat.unreported_s for heat in complete(aggregator.take(number + 0.4))]
        aggregator.add(report("a", number, 90), number + 1.0)
    assert bounds == [10, None, None, None, None, None, 5, 5, 5]


def test_a_window_of_silence_has_no_bound() -> None:
    aggregator = Aggregator(1.0)
    (window,) = aggregator.take(8.5)
    assert (window.complete, window.unreported_s) == (True, None)


@pytest.mark.parametrize("samples", [0.01, 0.08, 0.3, 1, 2, 5, 16, 62, 500])
def test_the_interval_of_a_rate_holds_with_the_confidence_that_is_stated(samples: float) -> None:
    """Not by chance: this sums up the probabilities of all numbers of samples."""
    tau, holds = 16.0, 0.0
    for number in range(int(samples + 12 * samples**0.5 + 20)):
        least, most = interval(number * tau, tau)
        if least <= samples * tau <= most:
            holds += exp(number * log(samples) - samples - lgamma(number + 1))
    assert 0.999 <= holds <= 1.000001


def test_the_interval_is_no_wider_than_it_must_be() -> None:
    """Of many samples, it is 3.29 standard deviations to either side."""
    least, most = interval(10_000.0, 1.0)
    assert least == pytest.approx(9_674, abs=4)
    assert most == pytest.approx(10_333, abs=4)
    assert interval(0.0, 16.0)[0] == 0.0


def test_true_rates_are_within_the_intervals_of_estimates() -> None:
    """A key with 600 writes a second on 60 servers, of which none sees enough to report it."""
    tau, servers, seeds, rate, held = 16, 60, 200, 600, 0
    for seed in range(seeds):
        rng, aggregator = Random(seed), Aggregator(1.0)
        tracker = Tracker(rng=rng)
        tracker.sample(tau, tau, NO_KEYS)
        tracker.roll()
        for server in range(servers):
            for _ in range(rate // servers):
                tracker.record("k")
            listed = tracker.roll().listed(NO_KEYS, rng)
            aggregator.add(Report(f"s{server}", 7, 1.0, True, tau, listed), 8.0)
        (window,) = complete(aggregator.take(8.5))
        heat = window.keys["k"]
        assert heat.bound_s is not None
        assert heat.below_s > 50
        held += heat.write_units_s - heat.below_s <= rate <= heat.write_units_s + heat.bound_s
    assert held >= seeds - 1
