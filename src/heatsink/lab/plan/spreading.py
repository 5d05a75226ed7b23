"""The remedy for hot keys: their writes go to as many buckets as production would decide."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from heatsink.detect.heat import WindowHeat
from heatsink.dynamo.rows.tokens import token_of
from heatsink.keys import partition_of
from heatsink.registry.layout import COLD, Layout
from heatsink.registry.rules import HORIZON_MS
from heatsink.spread.policy import BucketPolicy, BucketRules, Observation

Choose = Callable[[str, list[int]], int]


def by_chance(rng: Random) -> Choose:
    """As the hash of an id chooses a bucket."""
    chance = rng.random
    return lambda _key, tokens: tokens[int(chance() * len(tokens))]


def in_turn() -> Choose:
    """For samples: what a request stands for would be spread evenly by all of its hashes."""
    turns: dict[str, int] = {}

    def choose(key: str, tokens: list[int]) -> int:
        turns[key] = turn = turns.get(key, -1) + 1
        return tokens[turn % len(tokens)]

    return choose


class Spreading:
    """Decides from the fleet's heat. A new epoch begins after the registry's horizon.

    `bucket_hours` is what was added: two buckets more for three hours are six.
    """

    def __init__(self, rules: BucketRules) -> None:
        self.layouts: dict[str, Layout] = {}
        self.buckets_max = 1
        self.bucket_hours = 0.0
        self.keys: set[str] = set()
        self._policy = BucketPolicy(rules)
        self._version = 0
        self._extra = 0
        self._counted_s: float | None = None
        self._tokens: dict[str, list[int]] = {}

    def decide(self, windows: list[WindowHeat], now_s: float) -> None:
        decided = self._policy.decide(Observation(windows, self.layouts, {}, self._version))
        for decision in decided:
            layout = self.layouts.get(decision.key, COLD)
            if not layout.full:
                self.count(now_s)
                self._change(decision.key, layout, decision.value or 1, now_s)

    def _change(self, key: str, layout: Layout, buckets: int, now_s: float) -> None:
        start_ms = max(int(now_s * 1000) + HORIZON_MS, layout.epochs[-1].start_ms + 1)
        self.layouts[key] = layout.then(start_ms, buckets)
        self._version += 1
        self._extra += buckets - layout.buckets
        self.buckets_max = max(self.buckets_max, buckets)
        self.keys.add(key)

    def count(self, now_s: float) -> None:
        """Add up what the extra buckets come to until now."""
        if self._counted_s is not None:
            self.bucket_hours += self._extra * (now_s - self._counted_s) / 3_600
        self._counted_s = now_s

    def tokens(self, key: str, now_s: float) -> list[int] | None:
        """Where the key's buckets lie; None while it has only one."""
        layout = self.layouts.get(key)
        if layout is None:
            return None
        buckets = layout.epoch_at(int(now_s * 1000)).buckets
        if buckets == 1:
            return None
        known = self._tokens.setdefault(key, [])
        while len(known) < buckets:
            known.append(token_of(partition_of(key, len(known))))
        return known if len(known) == buckets else known[:buckets]
