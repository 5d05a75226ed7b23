"""Which partitions a batch may use, and which of them takes its next items.

Every batch is dealt a hand of its own (shuffle sharding): two batches rarely share all of it, so
a batch that goes wrong leaves most others alone. Within the hand the less loaded of two is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from random import Random

HAND_SHARE = 4  # a hand holds at most one partition in so many


def hand(batch: str, partitions: int, spread: bool = True) -> list[int]:
    """The batch's own partitions, the same ones each time, its first choice first."""
    size = max(partitions // HAND_SHARE, 1) if spread else 1
    ranked = sorted(range(partitions), key=lambda partition: _rank(batch, partition))
    return ranked[:size]


def _rank(batch: str, partition: int) -> bytes:
    return blake2b(f"{partition}/{batch}".encode(), digest_size=8, person=b"hand").digest()


def less_loaded(hand: Sequence[int], loads: Mapping[int, float], rng: Random) -> int:
    """The better of two that are drawn: nearly as good as the best of all, and never a herd."""
    if len(hand) == 1:
        return hand[0]
    return min(rng.sample(hand, 2), key=lambda partition: loads.get(partition, 0.0))
