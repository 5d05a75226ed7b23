"""Where a partition key lies among the hashes."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

from heatsink.dynamo.values import Native
from heatsink.hashing import seeded_hash

KNOWN_MAX = 1 << 16

_hash = seeded_hash(b"")


@lru_cache(KNOWN_MAX)
def token_of(key: Native) -> int:
    """The same in every run, even for keys that differ by one."""
    if isinstance(key, str):
        return _hash(key.encode())
    return _hash(str(key).encode() if isinstance(key, Decimal) else key)
