"""What an id stands for: a digest of the items that were submitted under it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from heatsink.checks import each
from heatsink.clock import Clock

from .items import encoded

YIELD_ITEMS = 1_000  # others get a turn while items are only read
_in_order = msgspec.msgpack.Encoder(order="deterministic").encode


class Fingerprint:
    """Of the items in their order; the order of an object's fields does not count."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16, person=b"items")
        self._count = 0

    def add(self, item: object) -> None:
        try:
            body = _in_order(item)
        except TypeError:  # keys that have no order
            body = encoded(self._count, item)
        self._hash.update(body)
        self._count += 1

    async def add_all(self, items: Iterable[Any] | AsyncIterable[Any], clock: Clock) -> None:
        async for item in each("items", items):
            self.add(item)
            if self._count % YIELD_ITEMS == 0:
                await clock.sleep(0)

    @property
    def text(self) -> str:
        return self._hash.hexdigest()
