from __future__ import annotations

from heatsink.reads.near_cache import FORGET_S, NearKeys
from heatsink.registry.decisions import SoftDecision, for_key
from heatsink.testing import ManualClock


def near(key: str, value: int | None, term: int = 1, setting: str = "near") -> SoftDecision:
    return SoftDecision(term, for_key(key, setting, value, "why"))


def test_what_is_decided_holds_until_it_is_taken_back(clock: ManualClock) -> None:
    keys = NearKeys(clock)
    keys.apply([near("a", 500), near("b", 200), near("c", 8, setting="workers")])
    assert [keys.near_s(key) for key in "abcd"] == [0.5, 0.2, 0.0, 0.0]
    keys.apply([near("a", None)])
    assert (keys.near_s("a"), list(keys.in_force())) == (0.0, ["b"])


def test_a_deposed_leader_changes_nothing(clock: ManualClock) -> None:
    keys = NearKeys(clock)
    keys.apply([near("a", 500, term=2), near("a", 100, term=1), near("b", 100, term=1)])
    assert [keys.near_s(key) for key in "ab"] == [0.5, 0.0]


async def test_what_nobody_repeats_is_forgotten(clock: ManualClock) -> None:
    keys = NearKeys(clock)
    keys.apply([near("a", 500), near("b", 500)])
    await clock.advance(FORGET_S - 1)
    keys.apply([near("b", 500)])
    await clock.advance(2)
    assert [keys.near_s(key) for key in "ab"] == [0.0, 0.5]
    assert list(keys.in_force()) == ["b"]


async def test_what_is_forgotten_takes_no_memory(clock: ManualClock) -> None:
    keys = NearKeys(clock)
    for number in range(100):
        keys.apply([near(f"key-{number}", 500)])
        await clock.advance(FORGET_S + 1)
    keys.apply([near("last", 500)])
    assert len(keys._targets._targets) == 1
