from __future__ import annotations

import pytest

from heatsink.emulator.capacity.limits import TableCapacity
from heatsink.lab.plan.findings import advice, best, report_of, warnings
from heatsink.lab.plan.lane import NOTHING, REMEDIES, Remedy
from heatsink.lab.plan.replay import Replay, ReplayOutcome, Survey
from heatsink.lab.plan.settings import MonthlyCost, Period, PlanSettings

ADAPTIVE, SPREAD, ABSORB = REMEDIES[1:4]


def outcome(
    remedy: Remedy, throttled: int, factor: float, worst: Period | None = None
) -> ReplayOutcome:
    """Of 10,000 requests, of which those that are served cost `factor` times as much as plain."""
    plain = (10_000 - throttled) / 1e6
    return ReplayOutcome(
        remedy=remedy,
        requests=10_000,
        throttled=throttled,
        absorbed=0,
        worst_minute=worst or Period(0),
        write_units=0.0,
        read_units=0.0,
        keys_spread=0,
        buckets_max=1,
        bucket_hours=0.0,
        partitions_at_first=4,
        partitions=4,
        cost=MonthlyCost(plain, factor * plain, 0.0),
        minutes=[worst or Period(0)],
        periods=[worst or Period(0)],
    )


def found(
    *outcomes: ReplayOutcome,
    writes_s: float = 100.0,
    weight: int = 1,
    capacity: TableCapacity | None = None,
    seconds: float = 86_400.0,
) -> Replay:
    survey = Survey(weight, 10_000, 5_000, 0.0, seconds, writes_s, 100.0, "hot", 0.5)
    settings = PlanSettings(capacity=capacity or TableCapacity())
    return Replay("trace", survey, settings, 4, list(outcomes))


def test_the_remedy_that_cures_for_least_is_recommended() -> None:
    first, rest = advice(
        found(
            outcome(NOTHING, 4_000, 1.00),
            outcome(ADAPTIVE, 3_000, 1.00),
            outcome(SPREAD, 20, 1.03),
            outcome(ABSORB, 10, 1.50),
        )
    )
    assert first.startswith(
        "40.00% of the requests are throttled without a remedy. Recommended: spread,"
    )
    assert "Adaptive removes 25% of the throttles, for the same cost per served request." in rest
    assert "Spread removes 99.50% of the throttles, for 3% more cost per served request." in rest
    assert "Absorb removes 99.75% of the throttles, for 50% more cost per served request." in rest


@pytest.mark.parametrize(
    ("left", "worst", "is_enough"), [(9, 4, True), (9, 5, False), (40, 50, True), (41, 4, False)]
)
def test_no_remedy_is_recommended_where_adaptive_capacity_is_enough(
    left: int, worst: int, is_enough: bool
) -> None:
    """DynamoDB always has it, so spreading on top would only cost."""
    most = 4_000 if left > 9 else 400
    before = outcome(NOTHING, most, 1.0, Period(0, requests=100, throttled=50))
    own = outcome(ADAPTIVE, left, 1.0, Period(0, requests=100, throttled=worst))
    replayed = found(before, own, outcome(SPREAD, 0, 0.9))
    first, _ = advice(replayed)
    assert ("On DynamoDB no remedy is needed" in first) is is_enough
    assert ("Recommended: spread" in first) is not is_enough
    answer = report_of(replayed).figures[0].value
    assert answer == ("Nothing, on DynamoDB" if is_enough else "Spread hot keys")


def test_where_nothing_cures_the_one_that_helps_most_is_named() -> None:
    outcomes = [outcome(NOTHING, 4_000, 1.0), outcome(SPREAD, 900, 2.0), outcome(ABSORB, 5_000, 1)]
    assert best(outcomes).remedy == SPREAD
    first, rest = advice(found(*outcomes))
    assert "Recommended: spread, which helps most, and does not cure it." in first
    assert "Absorb throttles 25% more," in rest


def test_a_calm_table_needs_no_remedy() -> None:
    first, rest = advice(
        found(outcome(NOTHING, 0, 1.0), outcome(SPREAD, 0, 1.0), outcome(ABSORB, 0, 0.5))
    )
    assert first == "0.00% of the requests are throttled without a remedy. No remedy is needed."
    assert rest == "Absorb throttles nothing either, for 50% less cost per served request."


def test_what_throttles_much_is_not_cheap_for_it() -> None:
    """Half the requests for half the money are the same price."""
    _, rest = advice(found(outcome(NOTHING, 5_000, 1.0), outcome(SPREAD, 0, 1.0)))
    assert rest == "Spread removes 100% of the throttles, for the same cost per served request."


@pytest.mark.parametrize(
    ("writes_s", "capacity", "said"),
    [
        (4_001, None, "needs 4,001 write units per second and the table has 4,000"),
        (600, TableCapacity(500, 500), "needs 600 write units per second and the table has 500"),
    ],
)
def test_a_table_that_is_too_small_as_a_whole_is_told_apart(
    writes_s: float, capacity: TableCapacity | None, said: str
) -> None:
    (warning,) = warnings(found(outcome(NOTHING, 1, 1), writes_s=writes_s, capacity=capacity))
    assert said in warning
    assert warnings(found(outcome(NOTHING, 1, 1), writes_s=400, capacity=capacity)) == []


def test_a_coarse_sample_is_said_to_be_one() -> None:
    (warning,) = warnings(found(outcome(NOTHING, 1, 1), weight=10_001))
    assert "stands for 10,001" in warning


def test_of_remedies_that_hardly_differ_the_one_with_fewest_parts_is_named() -> None:
    outcomes = [outcome(NOTHING, 6_000, 1), outcome(SPREAD, 998, 2), outcome(REMEDIES[4], 985, 1)]
    assert best(outcomes).remedy == SPREAD


def test_where_no_remedy_helps_it_says_so() -> None:
    outcomes = [outcome(NOTHING, 4_000, 1.0), outcome(ABSORB, 3_995, 0.9)]
    assert "None of the remedies helps." in advice(found(*outcomes))[0]


@pytest.mark.parametrize(
    ("left", "worst", "is_cure"),
    [(40, 50, True), (41, 50, False), (40, 51, False), (9, 51, False)],
)
def test_it_is_cured_if_a_hundredth_is_left_and_no_minute_is_worse(
    left: int, worst: int, is_cure: bool
) -> None:
    before = outcome(NOTHING, 4_000, 1.0, Period(0, requests=100, throttled=50))
    after = outcome(SPREAD, left, 1.0, Period(0, requests=100, throttled=worst))
    said = advice(found(before, after))[0]
    assert ("which cures it" in said) is is_cure
    assert ("does not cure it" in said) is not is_cure


@pytest.mark.parametrize(
    ("throttled", "words"), [(0, "No request is throttled."), (1, "Hardly any request is")]
)
def test_a_calm_load_is_told_from_one_without_any_throttle(throttled: int, words: str) -> None:
    report = report_of(found(outcome(NOTHING, throttled, 1.0), outcome(SPREAD, 0, 1.0)))
    assert report.figures[0].value == "Nothing"
    assert report.figures[0].beside.startswith(words)


def test_the_page_begins_with_what_to_do_what_it_costs_and_what_stays() -> None:
    before = outcome(NOTHING, 4_000, 1.0, Period(0, requests=100, throttled=50))
    both = outcome(REMEDIES[4], 20, 1.03, Period(0, requests=100, throttled=10))
    report = report_of(found(before, both))
    do, cost, stays = report.figures
    assert (do.label, do.value) == ("What should I do?", "Spread hot keys and cache hot reads")
    assert do.beside.startswith("This cures it, but 10.0% are throttled in the worst minute.")
    assert cost.value.endswith("a month")
    assert "A served request costs 3% more: the same requests would cost $" in cost.beside
    assert stays.value == "0.20% throttled"
    assert "20 of 10,000 requests. In the worst minute 10.0%." in stays.beside
    assert "Without a remedy: 40.00%, and 50.0% in the worst minute." in stays.beside


def test_a_calm_table_is_told_to_change_nothing() -> None:
    calm = found(outcome(NOTHING, 5, 1.0), outcome(ABSORB, 0, 0.5))
    assert best(calm.outcomes).remedy == NOTHING
    assert report_of(calm).figures[0].value == "Nothing"


def test_each_remedy_has_a_picture_of_its_own_on_one_scale() -> None:
    quiet, busy = Period(0, requests=600), Period(0, requests=6_000, throttled=3_000)
    report = report_of(found(outcome(NOTHING, 3_000, 1, busy), outcome(SPREAD, 0, 1, quiet)))
    assert [chart.title for chart in report.charts] == ["Nothing", "Spread"]
    for chart in report.charts:
        assert [line.name for line in chart.series] == ["served", "throttled"]
        assert chart.top == pytest.approx(1.05 * 3_000 / 300)
    assert "removes 100% of the throttles" in report.charts[1].note


def test_what_is_compared_with_is_named_if_it_is_a_remedy() -> None:
    outcomes = [outcome(ADAPTIVE, 4_000, 1.0), outcome(SPREAD, 20, 1.0)]
    assert advice(found(*outcomes))[0].startswith("40.00% of the requests are throttled with adapt")


@pytest.mark.parametrize(
    ("seconds", "said"), [(20.0, "20 s"), (720.0, "12 min"), (12_600.0, "3.5 h")]
)
def test_a_trace_of_less_than_a_day_is_said_to_be_short(seconds: float, said: str) -> None:
    short = found(outcome(NOTHING, 0, 1), seconds=seconds)
    line = f"The trace covers only {said}: a month is an extrapolation from it."
    assert warnings(short) == [line]
    assert line in report_of(short).story.split("\n\n")
    assert f"10,000 requests in {said}, " in report_of(short).story
    assert warnings(found(outcome(NOTHING, 0, 1), seconds=86_390.0)) == []


@pytest.mark.parametrize(
    ("seconds", "unit", "end"),
    [
        (1.0, "seconds", 1),
        (20.0, "seconds", 20),
        (590.0, "seconds", 590),
        (599.9, "minutes", 10),
        (21_000.0, "minutes", 350),
        (21_599.0, "hours", 6),
        (10 * 86_400.0, "hours", 240),
    ],
)
def test_a_picture_has_many_points_on_an_axis_that_suits_the_trace(
    seconds: float, unit: str, end: float
) -> None:
    (chart,) = report_of(found(outcome(NOTHING, 0, 1), seconds=seconds)).charts
    assert chart.x_title == unit
    for line in chart.series:
        x = [float(each) for each in line.x]
        assert 20 <= len(x) == len(line.y) <= 288
        assert x[0] == 0
        assert 0.95 * end <= x[-1] < end
