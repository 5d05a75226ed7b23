"""A partition runs hot, borrows, splits, isolates its hottest key, and stops at that key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.emulator.capacity.limits import FIXED, CapacityVerdict, SplitSettings, TableCapacity
from heatsink.emulator.capacity.policy import CannotHelp, Change, Isolate, Lend, Merge, Split
from heatsink.emulator.capacity.table import SPACE, AdaptiveTable
from heatsink.errors import InvalidSetting

LAG_S = 5.0
QUICK = SplitSettings(split_after_s=LAG_S, cool_down_s=1.0)
ON_DEMAND = TableCapacity()
ONE, TWO, FAR = SPACE // 8, SPACE // 4, SPACE - 1


class Run:
    """Load on one table over virtual time, and what became of it second by second."""

    def __init__(
        self,
        settings: SplitSettings = QUICK,
        capacity: TableCapacity = ON_DEMAND,
        partitions: int = 1,
    ) -> None:
        self.table = AdaptiveTable(settings, capacity, partitions, 0.0)
        self.now_s = 0.0
        self.changes: list[Change] = []
        self.verdicts: Counter[CapacityVerdict] = Counter()

    def load(self, seconds: int, units_s: int, key: Callable[[int], int]) -> None:
        """`units_s` writes of one unit every second, the n-th to the key `key(n)`."""
        for number in range(seconds * units_s):
            self.now_s += 1 / units_s
            self.changes += self.table.review(self.now_s)
            self.verdicts[self.table.charge(key(number), 1.0, 0.0, self.now_s)] += 1

    @property
    def throttled(self) -> int:
        return sum(count for verdict, count in self.verdicts.items() if not verdict.accepted)

    def of(self, kind: type) -> list[Change]:
        return [change for change in self.changes if isinstance(change, kind)]


def two_keys(number: int) -> int:
    return (ONE, TWO)[number % 2]


def test_two_keys_too_much_for_one_partition_are_split_apart_after_the_lag() -> None:
    run = Run()
    run.load(5, 1_600, two_keys)
    before = run.throttled
    assert before > 1_500
    run.load(20, 1_600, two_keys)
    assert run.changes == [
        Split(1, TWO, "1,600 write units/s (limit 1,000) for 5 s; no key has more than 50% of it")
    ]
    assert run.throttled <= before + 1_600  # what came until the split
    settled = run.throttled
    run.load(20, 1_600, two_keys)
    assert run.throttled == settled


def test_nothing_is_split_before_the_lag_nor_when_the_heat_comes_and_goes() -> None:
    run = Run()
    for _ in range(5):
        run.load(3, 1_600, two_keys)
        run.load(2, 100, two_keys)
    assert run.changes == []


def test_after_a_split_the_halves_are_left_alone_for_the_cool_down() -> None:
    run = Run(SplitSettings(split_after_s=1.0, cool_down_s=10.0))
    run.load(10, 4_000, lambda number: number % 64 * (SPACE // 64))
    assert [type(change) for change in run.changes] == [Split]
    run.load(3, 4_000, lambda number: number % 64 * (SPACE // 64))
    assert [type(change) for change in run.changes] == [Split] * 3


def test_one_key_borrows_is_isolated_and_then_said_to_be_beyond_help() -> None:
    run = Run(capacity=TableCapacity(writes=2_000.0, reads=100.0), partitions=4)
    run.load(20, 1_900, lambda number: ONE if number % 10 else TWO - number)
    kinds = [type(change) for change in run.changes]
    assert kinds == [Lend, Isolate, Lend, CannotHelp]
    assert "a key is never split: spread it" in run.changes[-1].reason
    alone = run.table.map.find(ONE)
    assert (alone.start, alone.end) == (ONE, ONE + 1)
    assert run.table.throttles["key"] > 0
    stuck = [one.number for one in run.table.partitions() if one.stuck]
    assert stuck == [alone.number]


def test_what_shares_a_partition_with_an_isolated_key_is_no_longer_throttled() -> None:
    run = Run(partitions=1)
    run.load(10, 1_900, lambda number: ONE if number % 10 else TWO - number)
    run.table.throttles.clear()
    run.load(10, 1_900, lambda number: ONE if number % 10 else TWO - number)
    assert set(run.table.throttles) == {"key"}


def test_a_partition_never_takes_more_than_its_limit_whatever_it_borrows() -> None:
    capacity = TableCapacity(writes=4_000.0, reads=100.0)
    run = Run(SplitSettings(split_after_s=None), capacity, partitions=4)
    run.load(10, 3_000, lambda _: ONE)
    accepted = 30_000 - run.throttled
    assert accepted == pytest.approx(1_000 * 11, abs=2)  # a second's worth at the start


@given(st.integers(0, 2**32), st.booleans())
def test_a_partition_takes_its_limit_whatever_the_sizes(seed: int, lend: bool) -> None:
    sizes = Random(seed).choices([1.0, 2.0, 4.0, 30.0], k=300)
    settings = SplitSettings(write_units=100.0, split_after_s=None, lend=lend)
    capacity = TableCapacity(writes=100.0, reads=100.0) if lend else ON_DEMAND
    table = AdaptiveTable(settings, capacity, 1, 0.0)
    taken, now_s = 0.0, 0.0
    for size in sizes:
        left = 100.0 + 100.0 * now_s - taken
        accepted = table.charge(ONE, size, 0.0, now_s).accepted
        if abs(left - 1.0) > 1e-6:
            assert accepted == (left > 1.0), "not its size decides"
        taken += size * accepted
        now_s += size / 300.0  # three times as much as it takes
    assert taken >= min(100.0 * now_s, sum(sizes)) - 1e-6
    assert taken <= 100.0 + 100.0 * now_s + max(sizes)


def test_what_was_taken_is_told_apart_from_what_was_refused() -> None:
    run = Run(SplitSettings(split_after_s=None))
    run.load(10, 3_000, lambda _: ONE)
    (state,) = run.table.partitions()
    assert state.writes_s == pytest.approx(1_000, abs=2)
    assert state.refused_writes_s == pytest.approx(2_000, abs=2)
    assert state.load == pytest.approx(3.0, abs=0.01), "of what was asked for"
    assert (state.reads_s, state.refused_reads_s) == (0.0, 0.0)


def test_without_lending_a_partition_lives_on_its_share_and_its_savings() -> None:
    settings = SplitSettings(lend=False, split_after_s=None, burst_s=10.0)
    run = Run(settings, TableCapacity(writes=400.0, reads=100.0), partitions=4)
    run.load(20, 50, lambda _: ONE)  # half of its share: ten seconds' worth is saved up
    run.load(10, 300, lambda _: ONE)
    assert run.verdicts[CapacityVerdict(True, "burst")] > 0
    accepted = 20 * 50 + 10 * 300 - run.throttled
    assert accepted == pytest.approx(20 * 50 + 1_000 + 10 * 100, abs=2)
    lent = Run(SplitSettings(split_after_s=None), TableCapacity(400.0, 100.0), partitions=4)
    lent.load(10, 300, lambda _: ONE)
    assert lent.throttled == 0
    assert lent.verdicts[CapacityVerdict(True, "lent")] > 0


def test_a_split_divides_what_was_saved_and_the_shares_of_all() -> None:
    settings = SplitSettings(lend=False, burst_s=10.0)
    table = AdaptiveTable(settings, TableCapacity(writes=400.0, reads=100.0), 2, 0.0)
    table.apply(Split(1, SPACE // 4, "drawn"), 100.0)
    saved = [one.write_burst for one in table.partitions()]
    assert saved == [1_000.0, 1_000.0, pytest.approx(10 * 400 / 3)]
    accepted = sum(table.charge(FAR, 1.0, 0.0, 200.0 + n / 1_000).accepted for n in range(10_000))
    assert accepted == pytest.approx(10 * 400 / 3 + 10 * 400 / 3, abs=2), "savings, then the share"


def test_what_the_table_refuses_heats_no_partition() -> None:
    run = Run(capacity=TableCapacity(writes=500.0, reads=100.0), partitions=1)
    run.load(20, 2_000, two_keys)
    assert run.of(Split) == []
    assert set(run.table.throttles) == {"table"}


def test_reads_heat_as_writes_do() -> None:
    table = AdaptiveTable(QUICK, ON_DEMAND, 1, 0.0)
    changes: list[Change] = []
    for number in range(10 * 4_000):
        now_s = number / 4_000
        changes += table.review(now_s)
        table.charge(two_keys(number), 0.0, 1.0, now_s)
    assert [type(change) for change in changes] == [Split]
    assert "4,000 read units/s (limit 3,000)" in changes[0].reason


def test_a_request_that_reads_and_writes_is_taken_whole_or_not_at_all() -> None:
    table = AdaptiveTable(FIXED, ON_DEMAND, 1, 0.0)
    assert table.charge(ONE, 0.0, 3_000.0, 0.0).accepted
    assert not table.charge(ONE, 1_000.0, 1.0, 0.0).accepted
    assert table.charge(ONE, 1_000.0, 0.0, 0.0).accepted


def test_a_refund_leaves_what_was_there_before() -> None:
    table = AdaptiveTable(QUICK, TableCapacity(1_000.0, 100.0), 4, 0.0)
    for _ in range(3):
        verdict = table.charge(ONE, 900.0, 0.0, 0.0)
        assert verdict.source == "lent"
        table.refund(ONE, 900.0, 0.0, verdict)
    assert table.charge(ONE, 1_000.0, 0.0, 0.0).accepted


def test_what_has_long_cooled_is_merged_down_to_the_first_partitions() -> None:
    run = Run(SplitSettings(split_after_s=2.0, cool_down_s=1.0, merge_after_s=10.0))
    run.load(20, 3_200, lambda number: (number % 16) * (SPACE // 16))
    assert len(run.table.map) >= 4
    run.load(9, 100, two_keys)
    assert run.of(Merge) == []
    run.load(60, 100, two_keys)
    assert len(run.table.map) == 1


def test_by_default_nothing_is_ever_merged() -> None:
    run = Run()
    run.load(10, 1_600, two_keys)
    run.load(100, 10, two_keys)
    assert len(run.table.map) == 2


def test_no_more_partitions_than_allowed_and_it_says_so() -> None:
    run = Run(SplitSettings(split_after_s=1.0, cool_down_s=0.0, partitions_max=2))
    run.load(10, 4_000, lambda number: number % 64 * (SPACE // 64))
    assert len(run.table.map) == 2
    assert "2 partitions" in run.of(CannotHelp)[0].reason


def test_a_change_is_proposed_once_until_it_is_applied() -> None:
    table = AdaptiveTable(QUICK, ON_DEMAND, 1, 0.0)
    proposed: list[Change] = []
    for number in range(10 * 1_600):
        now_s = number / 1_600
        proposed += table.decide(now_s)
        table.charge(two_keys(number), 1.0, 0.0, now_s)
    assert len(proposed) == 1
    assert len(table.map) == 1
    table.apply(proposed[0], 10.0)
    assert len(table.map) == 2


@given(st.integers(0, 2**32), st.integers(1, 4), st.booleans())
def test_changes_make_no_throughput(seed: int, partitions: int, provisioned: bool) -> None:
    """Whatever is split, isolated and merged: a table's capacity and a key's ceiling hold."""
    rng = Random(seed)
    settings = SplitSettings(
        write_units=10.0, split_after_s=1.0, cool_down_s=0.0, merge_after_s=2.0, burst_s=3.0
    )
    capacity = TableCapacity(writes=25.0, reads=100.0) if provisioned else ON_DEMAND
    table = AdaptiveTable(settings, capacity, partitions, 0.0)
    keys = [rng.getrandbits(64) for _ in range(5)]
    taken: Counter[int] = Counter()
    for number in range(1_200):
        now_s = number / 100 if number < 800 else 8 + (number - 800) / 10
        table.review(now_s)
        key = keys[min(int(rng.expovariate(1)), 4)]
        taken[key] += table.charge(key, 1.0, 0.0, now_s).accepted
    seconds = 8 + 40
    assert all(units <= 10 * (seconds + 1) for units in taken.values())
    if provisioned:
        assert taken.total() <= 25 * (seconds + 1)


@pytest.mark.parametrize(
    "wrong", [{"split_after_s": -1}, {"hot_share": 2}, {"write_units": 0}, {"partitions_max": 0}]
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        SplitSettings(**wrong)  # type: ignore[arg-type]
