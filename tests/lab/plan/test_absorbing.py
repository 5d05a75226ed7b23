from __future__ import annotations

from random import Random

from heatsink.lab.plan.lane import Absorbing
from heatsink.lab.plan.settings import PlanSettings

SETTINGS = PlanSettings(servers=1, fresh_for=1.0, stale_for=10.0)


class Store:
    def __init__(self) -> None:
        self.asked = 0
        self.is_throttled = False

    def load(self) -> bool:
        self.asked += 1
        return not self.is_throttled


def test_a_refresh_that_failed_is_not_tried_again_at_once() -> None:
    store, near = Store(), Absorbing(SETTINGS, 1, Random(1))
    assert near.read("key", 0.0, store.load)
    store.is_throttled = True
    served = [near.read("key", 2 + number / 100, store.load) for number in range(100)]
    assert all(served)
    assert store.asked == 2


def test_nothing_is_served_beyond_stale_for() -> None:
    store, near = Store(), Absorbing(SETTINGS, 1, Random(1))
    assert near.read("key", 0.0, store.load)
    store.is_throttled = True
    assert near.read("key", 9.8, store.load)
    assert not near.read("key", 10.1, store.load)


def test_what_was_throttled_is_not_kept() -> None:
    store, near = Store(), Absorbing(SETTINGS, 1, Random(1))
    store.is_throttled = True
    assert not near.read("key", 0.0, store.load)
    assert not near.read("key", 0.1, store.load)
    assert near.absorbed == 0


def test_copies_of_a_sampled_key_age_more_slowly() -> None:
    store, near = Store(), Absorbing(SETTINGS, 100, Random(1))
    assert near.read("key", 0.0, store.load)
    assert near.read("key", 80.0, store.load)
    assert store.asked == 1
