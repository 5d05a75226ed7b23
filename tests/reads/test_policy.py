from __future__ import annotations

import pytest

from heatsink.errors import InvalidSetting
from heatsink.heat.heat import KeyHeat, WindowHeat
from heatsink.primitives.subjects import Kind, Subject
from heatsink.reads.policy import NearPolicy, NearRules, ReadObservation
from heatsink.registry.decisions import Decision


class Fleet:
    """A policy, and what came of its decisions."""

    def __init__(self, rules: NearRules) -> None:
        self.policy = NearPolicy(rules)
        self.near: dict[str, Decision] = {}

    def see(self, start_s: float, servers: int = 50, **reads_s: float) -> list[Decision]:
        keys = {key: KeyHeat(0, 0, reads, 0, 0) for key, reads in reads_s.items()}
        window = WindowHeat(int(start_s), start_s, True, keys, 0)
        decided = self.policy.decide(ReadObservation(window, servers, dict(self.near)))
        for decision in decided:
            self.near[decision.key] = decision
            if decision.value is None:
                del self.near[decision.key]
        return decided


def test_a_read_hot_key_is_kept_and_the_reason_says_why() -> None:
    decided = Fleet(NearRules()).see(1, hot=12_000, cold=900)
    assert decided == [Decision(Subject(Kind.KEY, "hot"), "near", 500, "12,000 reads/s")]


@pytest.mark.parametrize(
    ("servers", "ms"), [(1, 100), (10, 100), (11, 200), (50, 500), (900, 10_000)]
)
def test_the_more_servers_the_longer_each_keeps_it(servers: int, ms: int) -> None:
    assert Fleet(NearRules()).see(1, servers, hot=12_000)[0].value == ms


def test_nothing_is_said_twice() -> None:
    fleet = Fleet(NearRules())
    assert fleet.see(1, hot=12_000)
    for second in range(2, 60):
        assert fleet.see(second, hot=2_000 if second % 2 else 800) == []
    assert fleet.see(60, servers=200, hot=2_000)[0].value == 2_000


def test_a_key_is_let_go_after_it_was_calm_for_long() -> None:
    fleet = Fleet(NearRules(cool_down_s=30))
    fleet.see(1, hot=12_000)
    for second in range(2, 32):
        assert fleet.see(second, hot=10) == []
    [gone] = fleet.see(32)
    assert (gone.value, gone.reason) == (None, "less than 500 reads/s for 30 s")
    assert fleet.see(33) == []
    assert fleet.see(34, hot=1_000)[0].value == 500


def test_a_new_leader_lets_go_what_an_old_one_kept() -> None:
    fleet = Fleet(NearRules(cool_down_s=30))
    fleet.see(1, hot=12_000)
    fleet.policy = NearPolicy(NearRules(cool_down_s=30))
    assert fleet.see(100) == [], "it has not seen it calm for long enough"
    assert fleet.see(130)[0].value is None


def test_the_hottest_come_first_and_the_number_is_bounded() -> None:
    fleet = Fleet(NearRules(keys_max=2))
    decided = fleet.see(1, a=2_000, b=9_000, c=5_000)
    assert [decision.key for decision in decided] == ["b", "c"]


def test_rules_name_what_is_wrong() -> None:
    for wrong in ("hot_reads_s", "loads_s", "cool_down_s", "keys_max"):
        with pytest.raises(InvalidSetting, match=wrong):
            NearRules(**{wrong: -1})
