from __future__ import annotations

from math import ceil
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import InvalidSetting
from heatsink.heat.heat import KeyHeat, WindowHeat
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import PIN, Decision, for_key
from heatsink.registry.layouts import COLD, Layout
from heatsink.spread.policy import (
    REVIEWS,
    REVIEWS_MAX,
    BucketPolicy,
    BucketRules,
    KeyObservation,
    suffers_from,
)

START_S = 1_800_000_000


class Plant:
    """What the policy steers: layouts that do as they are told, second by second."""

    def __init__(self, rules: BucketRules) -> None:
        self.policy = BucketPolicy(rules)
        self.layouts: dict[str, Layout] = {}
        self.pins: dict[str, Decision] = {}
        self.second = START_S
        self.last_reason = ""

    def feel(
        self,
        units_s: float,
        seconds: int = 1,
        throttles_s: float = 0.0,
        bound_s: float = 0.0,
        below_s: float = 0.0,
    ) -> int:
        heat = KeyHeat(units_s, units_s, 0.0, throttles_s, bound_s, below_s=below_s)
        for _ in range(seconds):
            self._turn({"k": heat}, complete=True)
        return self.layouts.get("k", COLD).buckets

    def meet_a_limit(self, units_s: float, limit_s: float, seconds: int) -> int:
        """A key that is all of each of its partitions, which take so much and refuse the rest."""
        for _ in range(seconds):
            buckets = self.layouts.get("k", COLD).buckets
            refused_s = max(units_s - limit_s * buckets, 0.0)
            taken_s = min(units_s / buckets, limit_s)
            heat = KeyHeat(units_s, units_s, 0.0, refused_s, 0.0, 3, taken_s)
            self._turn({"k": heat}, complete=True)
        return self.layouts.get("k", COLD).buckets

    def alarm(self, units_s: float) -> int:
        self._turn({"k": KeyHeat(units_s, units_s, 0.0, 0.0, 0.0)}, complete=False)
        return self.layouts.get("k", COLD).buckets

    def silence(self, seconds: int) -> int:
        for _ in range(seconds):
            self._turn({}, complete=True)
        return self.layouts.get("k", COLD).buckets

    def calm(self, seconds: int) -> None:
        """Silence, reported every third second: three missing windows in a row are not too many."""
        for _ in range(seconds // 3):
            self._turn({}, complete=True)
            self.second += 2

    def _turn(self, keys: dict[str, KeyHeat], complete: bool) -> None:
        window = WindowHeat(self.second, self.second, complete, keys, 0.0)
        seen = KeyObservation([window], self.layouts, self.pins)
        for decision in self.policy.decide(seen):
            layout = self.layouts.get(decision.key, COLD)
            assert decision.value is not None
            self.layouts[decision.key] = layout.then(self.second * 1000 + 500, decision.value)
            self.last_reason = decision.reason
        self.second += complete


EXACT = BucketRules(forecast_s=0, cool_down_s=60)


def test_the_seeds_phases() -> None:
    plant = Plant(EXACT)
    assert [plant.feel(rate) for rate in (200, 900, 2_200, 4_000)] == [1, 2, 3, 5]
    assert plant.feel(100, seconds=59) == 5
    assert plant.feel(100, seconds=5) == 1
    calm, fill = plant.last_reason.split(": ")
    assert calm == "at most 100 write units/s for 60 s"
    assert fill == "1 bucket would be at most 50% full"


def test_the_seeds_phases_as_a_high_water_mark() -> None:
    plant = Plant(BucketRules(forecast_s=0, cool_down_s=60, shrink=False))
    assert [plant.feel(rate) for rate in (200, 900, 2_200, 4_000)] == [1, 2, 3, 5]
    assert plant.feel(100, seconds=1_000) == 5


def test_buckets_made_for_a_forecast_go_back_once_the_rate_has_levelled_off() -> None:
    """The phases of the ramp with the default rules: N is 5 or 6 at 4,000/s, not 9."""
    plant = Plant(BucketRules())
    for rate in (200, 900, 2_200):
        plant.feel(rate, seconds=3)
    assert plant.feel(4_000, seconds=2) > 6
    assert plant.feel(4_000, seconds=30) in (5, 6)
    assert "the rate levelled off at 4,000 write units/s" in plant.last_reason
    epochs = plant.layouts["k"].epochs
    plant.feel(4_000, seconds=3_600)
    assert plant.layouts["k"].epochs == epochs, "and stays there"


@given(st.integers(0, 2**32), st.floats(0.5, 20))
def test_a_noisy_level_does_not_flap(seed: int, thousands: float) -> None:
    plant, noise, level = Plant(BucketRules()), Random(seed), thousands * 1_000
    plant.feel(200, seconds=2)
    for _ in range(60):
        plant.feel(level * noise.uniform(0.95, 1.0))
    settled = len(plant.layouts.get("k", COLD).epochs)
    for _ in range(600):
        plant.feel(level * noise.uniform(0.95, 1.0))
    layout = plant.layouts.get("k", COLD)
    assert ceil(0.95 * level / 800) <= layout.buckets <= ceil(level / 800) + 1
    assert len(layout.epochs) <= settled + 1


def test_buckets_that_throttling_asked_for_are_not_trimmed() -> None:
    plant = Plant(BucketRules())
    for rate in (200, 2_000, 4_000):
        plant.feel(rate)
    plant.feel(4_000, seconds=5, throttles_s=400)
    buckets = plant.layouts["k"].buckets
    assert plant.feel(4_000, seconds=60) == buckets


def test_a_pin_that_is_gone_leaves_its_buckets_to_the_cool_down() -> None:
    plant = Plant(BucketRules())
    plant.feel(200, seconds=2)
    plant.pins["k"] = for_key("k", PIN, 9, "a big evening")
    plant.feel(200, seconds=60)
    plant.pins.clear()
    assert plant.feel(200, seconds=200) == 9
    assert plant.feel(200, seconds=200) == 1


OTHER_PERIODS = pytest.mark.full("one period is enough in plain runs: each is a week of windows")


@pytest.mark.parametrize(
    "period_s",
    [pytest.param(60, marks=OTHER_PERIODS), 400, pytest.param(3_600, marks=OTHER_PERIODS)],
)
def test_a_key_that_bursts_for_a_week_keeps_epochs_in_reserve(period_s: int) -> None:
    """Bursts of ten seconds, of changing height, with a cool-down shorter than some pauses."""
    plant, chance = Plant(BucketRules(cool_down_s=30)), Random(7)
    week_s = 7 * 86_400
    for _ in range(0, week_s, period_s):
        height = chance.choice([2_000, 4_000, 4_200, 8_000])
        for rate in (200, height / 2, height):
            plant.feel(rate)
        plant.feel(height, seconds=7)
        plant.calm(period_s - 10)
    assert len(plant.layouts["k"].epochs) < 192
    assert plant.feel(4_000, seconds=2) >= 5


def test_a_reason_tells_a_person_why() -> None:
    plant = Plant(EXACT)
    plant.feel(4_000)
    assert plant.last_reason == "4,000 write units/s; a bucket should get at most 800"


def test_a_ramp_of_a_fifth_a_second_is_always_ahead_of_the_limit() -> None:
    """Writes of the next two seconds stay below 1,000 a bucket with today's layout."""
    plant, rate = Plant(BucketRules()), 200.0
    while rate < 4_000:
        buckets = plant.feel(rate)
        rate *= 1.2
        assert min(rate * 1.2, 4_000) / buckets <= 1_000, f"{buckets} buckets at {rate:.0f}/s"
    assert "expected in 3 s" in plant.last_reason


def test_an_alarm_inside_a_window_grows_at_once_and_never_shrinks() -> None:
    plant = Plant(EXACT)
    assert plant.alarm(4_000) == 5
    assert plant.alarm(10) == 5


def test_a_key_nobody_reports_any_more_cools_down() -> None:
    plant = Plant(EXACT)
    plant.feel(4_000)
    assert plant.silence(70) == 1


def test_load_that_would_fill_more_than_half_of_fewer_buckets_keeps_what_it_has() -> None:
    plant = Plant(EXACT)
    plant.feel(4_000)
    assert plant.feel(1_700, seconds=200) == 5
    assert plant.feel(1_500, seconds=200) == 5  # 4 would do, but one bucket is not worth a change
    assert plant.feel(1_100, seconds=100) == 3


def test_a_jump_is_not_taken_for_the_beginning_of_a_line() -> None:
    plant = Plant(BucketRules())
    plant.feel(200)
    assert plant.feel(4_000) == 10


def test_a_spike_during_the_cool_down_starts_it_again() -> None:
    plant = Plant(EXACT)
    plant.feel(4_000)
    plant.feel(100, seconds=50)
    plant.feel(3_900)
    assert plant.feel(100, seconds=50) == 5
    assert plant.feel(100, seconds=20) == 1


def test_what_was_not_seen_was_not_calm() -> None:
    """Reports were lost for two minutes: the cool-down starts anew."""
    plant = Plant(EXACT)
    plant.feel(4_000)
    plant.second += 120
    assert plant.feel(10, seconds=55) == 5
    assert plant.feel(10, seconds=10) == 1


def test_buckets_are_capped() -> None:
    assert Plant(BucketRules(buckets_max=8)).feel(1_000_000) == 8


def test_being_throttled_is_heat_whatever_the_count_says() -> None:
    plant = Plant(EXACT)
    plant.feel(790)
    assert plant.feel(790, throttles_s=100) == 2
    assert "throttled/s on 1 bucket;" in plant.last_reason


def test_a_cool_key_is_not_spread_for_the_heat_of_others_in_its_partition() -> None:
    plant = Plant(EXACT)
    assert plant.feel(100, seconds=5, throttles_s=60) == 1


def test_a_key_that_is_most_of_its_partition_is_spread_however_little_that_takes() -> None:
    plant = Plant(EXACT)
    assert plant.meet_a_limit(300, limit_s=100, seconds=10) == 3
    assert "throttled/s on 2 buckets" in plant.last_reason


def test_a_key_does_not_come_down_to_where_it_was_refused() -> None:
    plant = Plant(EXACT)
    plant.meet_a_limit(300, limit_s=100, seconds=10)
    epochs = plant.layouts["k"].epochs
    assert plant.meet_a_limit(300, limit_s=100, seconds=200) == 3
    assert plant.layouts["k"].epochs == epochs, "neither down nor up again"
    assert plant.meet_a_limit(20, limit_s=100, seconds=70) == 1


@pytest.mark.parametrize(
    ("units_s", "in_all", "buckets", "culprit"),
    [
        (600, 1_300, 1, "key"),
        (100, 1_000, 1, "partition"),
        (100, 201, 1, "partition"),
        (100, 200, 1, "key"),
        (100, 100, 2, "key"),
        (100, 100, 3, "partition"),
    ],
)
def test_who_is_most_of_a_partition_makes_it_hot(
    units_s: float, in_all: float, buckets: int, culprit: str
) -> None:
    heat = KeyHeat(units_s, units_s, 0.0, 50.0, 0.0, 7, in_all)
    assert suffers_from(heat, BucketRules(), buckets) == culprit


@pytest.mark.parametrize(
    ("units_s", "throttles_s", "culprit"),
    [(900, 0, None), (900, 200, "key"), (400, 200, "key"), (399, 200, "partition")],
)
def test_whose_heat_a_throttled_key_meets(
    units_s: float, throttles_s: float, culprit: str | None
) -> None:
    heat = KeyHeat(units_s, units_s, 0.0, throttles_s, 0.0)
    assert suffers_from(heat, BucketRules()) == culprit


def test_throttles_from_before_the_present_layout_do_not_count() -> None:
    plant = Plant(EXACT)
    assert plant.feel(1_500, throttles_s=700) == 2
    plant.second -= 1
    assert plant.feel(1_500, throttles_s=700) == 2


def test_the_mode_of_an_author_keeps_its_reason() -> None:
    plant, author = Plant(EXACT), Subject(Kind.AUTHOR, "grace")
    reason = "followers: 12,004, 10,000 or more are pulled"
    decision = Decision(author, PIN, 2, reason)
    plant.pins[decision.key] = decision
    plant.feel(10)
    assert plant.last_reason == reason


def test_a_pin_overrides_heat_until_it_is_gone() -> None:
    plant = Plant(EXACT)
    plant.pins["k"] = for_key("k", PIN, 4, "launch at noon")
    assert plant.feel(10) == 4
    assert plant.last_reason == "pinned: launch at noon"
    assert plant.feel(40_000) == 4
    del plant.pins["k"]
    assert plant.feel(4_000) == 5


def test_a_deployment_has_a_budget_of_extra_buckets() -> None:
    plant = Plant(BucketRules(forecast_s=0, extra_buckets_max=5))
    assert plant.feel(3_000) == 4
    assert plant.feel(9_000) == 6
    plant.pins["k"] = for_key("k", PIN, 9, "the operator knows")
    assert plant.feel(9_000) == 9


def test_a_window_that_runs_does_not_take_the_forecast_back() -> None:
    """In one turn: a complete window that rises, and the next one, which has just begun."""
    plant = Plant(BucketRules())
    plant.feel(1_000)
    rising = {"k": KeyHeat(2_000, 2_000, 0, 0, 0)}
    begun = {"k": KeyHeat(2_100, 2_100, 0, 0, 0)}
    windows = [
        WindowHeat(plant.second, plant.second, True, rising, 0.0),
        WindowHeat(plant.second + 1, plant.second + 1, False, begun, 0.0),
    ]
    (decision,) = plant.policy.decide(KeyObservation(windows, plant.layouts, {}))
    assert decision.value == 5


@pytest.mark.parametrize(
    ("bound_s", "below_s", "buckets"), [(0.0, 0.0, 2), (170.0, 0.0, 1), (0.0, 80.0, 1)]
)
def test_a_rise_that_may_be_an_error_of_the_estimate_is_not_extrapolated(
    bound_s: float, below_s: float, buckets: int
) -> None:
    """It comes from a rough rate, or leads to a rate that may be below half a bucket's load."""
    plant = Plant(BucketRules())
    plant.feel(300, bound_s=bound_s)
    assert plant.feel(470, below_s=below_s) == buckets


def test_a_rise_to_half_a_buckets_load_that_may_be_chance_is_not_extrapolated() -> None:
    """Of a key with 360 writes a second, one exact window in a hundred counts 406 or more."""
    plant = Plant(BucketRules())
    plant.feel(140)
    assert plant.feel(406) == 1


rates = st.lists(st.integers(0, 20_000), min_size=1, max_size=120)


@given(rates)
def test_there_are_never_too_few_buckets_nor_more_than_the_cap(loads: list[int]) -> None:
    plant = Plant(BucketRules(forecast_s=0, buckets_max=16, cool_down_s=5))
    for load in loads:
        buckets = plant.feel(load)
        assert min(load / 800, 16) <= buckets <= 16


@given(rates)
def test_the_same_readings_give_the_same_decisions(loads: list[int]) -> None:
    plants = Plant(BucketRules(cool_down_s=5)), Plant(BucketRules(cool_down_s=5))
    for load in loads:
        assert plants[0].feel(load) == plants[1].feel(load)
    assert plants[0].layouts == plants[1].layouts


@pytest.mark.parametrize(
    ("name", "value"),
    [("bucket_units_s", 0), ("buckets_max", 0), ("forecast_s", -1), ("shrink_fill", 0)],
)
def test_a_wrong_rule_is_named(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match=name):
        BucketRules(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("keys", [REVIEWS // 2, 4 * REVIEWS])
def test_many_spread_keys_are_reviewed_in_slices_and_all_of_them_shrink(keys: int) -> None:
    """Windows come every second, and the cool-down is over for all keys at the same time."""
    plant = Plant(BucketRules(cool_down_s=60.0))
    plant.layouts = {f"key-{n}": Layout.of([(1, 4)]) for n in range(keys)}
    most = 0
    for _ in range(130):
        before = sum(layout.buckets == 1 for layout in plant.layouts.values())
        plant.silence(1)
        most = max(most, sum(layout.buckets == 1 for layout in plant.layouts.values()) - before)
    assert all(layout.buckets == 1 for layout in plant.layouts.values())
    assert most <= max(REVIEWS, ceil(keys / 3)) <= REVIEWS_MAX
