from __future__ import annotations

import pytest

from heatsink.emulator.capacity.limits import TableCapacity
from heatsink.lab.plan.findings import advice, best, warnings
from heatsink.lab.plan.lane import NOTHING, REMEDIES, Remedy
from heatsink.lab.plan.replay import Replay, ReplayOutcome, Survey
from heatsink.lab.plan.settings import Minute, MonthlyCost, PlanSettings

ADAPTIVE, SPREAD, ABSORB = REMEDIES[1:4]


def outcome(remedy: Remedy, throttled: int, factor: float) -> ReplayOutcome:
    """Of 10,000 requests, of which those that are served cost `factor` times as much as plain."""
    plain = (10_000 - throttled) / 1e6
    return ReplayOutcome(
        remedy=remedy,
        requests=10_000,
        throttled=throttled,
        absorbed=0,
        worst_minute=Minute(0),
        write_units=0.0,
        read_units=0.0,
        keys_spread=0,
        buckets_max=1,
        bucket_hours=0.0,
        partitions_at_first=4,
        partitions=4,
        cost=MonthlyCost(plain, factor * plain, 0.0),
        minutes=[],
    )


def found(
    *outcomes: ReplayOutcome,
    writes_s: float = 100.0,
    weight: int = 1,
    capacity: TableCapacity | None = None,
) -> Replay:
    survey = Survey(weight, 10_000, 5_000, 0.0, 60.0, writes_s, 100.0, "hot", 0.5)
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
    assert "Adaptive removes 25% of the throttles, for the same cost per request." in rest
    assert "Spread removes 99.50% of the throttles, for 3% more cost per request." in rest
    assert "Absorb removes 99.75% of the throttles, for 50% more cost per request." in rest


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
    assert rest == "Absorb throttles nothing either, for 50% less cost per request."


def test_what_throttles_much_is_not_cheap_for_it() -> None:
    """Half the requests for half the money are the same price."""
    _, rest = advice(found(outcome(NOTHING, 5_000, 1.0), outcome(SPREAD, 0, 1.0)))
    assert rest == "Spread removes 100% of the throttles, for the same cost per request."


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
