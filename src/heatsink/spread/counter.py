"""Counters that many may add to at once, and whose adds count once however often they are retried.

An add is one transaction in the token's partition: the token's record and the sum together. A
token is an id and carries time, so it is placed as a row is, and a retry meets its own record
whatever the layout is by then. Records are kept for `token_ttl_s`; then a fold seals the time
before, and a token from sealed time is refused, by the store, in the same transaction: there is no
moment in which a forgotten token could be counted again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from heatsink.errors import Conflict, InvalidId, Retryable, TokenExpired
from heatsink.keys import check_key, partition_of
from heatsink.registry.layout import Layout

from .buffered import FLUSH_S, BufferedCounters
from .parts import Parts
from .store import CounterStore, Total
from .totals import TotalsStore, check_amount

TOKEN_TTL_S = 86_400.0
REMEMBERED_MAX = 10_000


class Counters:
    """`hs.counters`: numbers that many may add to at once, exact whatever is retried."""

    def __init__(self, store: CounterStore, parts: Parts, token_ttl_s: float = TOKEN_TTL_S) -> None:
        self._store = store
        self._parts = parts
        self._registry = parts.registry
        self._router = parts.router
        self._tracker = parts.tracker
        self._backoff = parts.backoff
        self._token_ttl_s = token_ttl_s
        self._folded: dict[str, int] = {}

    async def add(self, key: str, amount: int = 1, *, token: Any = None) -> None:
        """Add to a counter. With the same `token` it is the same add, however often it is sent."""
        key = check_key(key)
        check_amount(amount)
        deadline_s = self._parts.begin()
        try:
            if token is not None:
                raw, time_ms = self._router.id_from(token)
                self._check_age(time_ms)
            else:
                raw, time_ms = await self._router.token(deadline_s)
            partition, epoch = await self._router.place_soon(key, raw, time_ms, deadline_s)
        except InvalidId as error:
            raise error.called("token") from None
        self._tracker.record(key, bucket=partition if epoch.buckets > 1 else None)
        add = partial(self._store.add, partition, raw, time_ms, amount)
        before = await self._backoff.call(add, key, deadline_s)
        if before is not None and before != amount:
            raise Conflict(f"this token added {before} before, not {amount}: use a new token")

    def buffered(self, flush_s: float = FLUSH_S) -> BufferedCounters:
        """For higher rates: `async with hs.counters.buffered() as counts`, then `counts.add`."""
        return BufferedCounters(TotalsStore(self._store, self._parts, self._token_ttl_s), flush_s)

    async def value(self, key: str) -> int:
        """The sum of all acknowledged adds, as of one moment during the call."""
        key = check_key(key)
        deadline_s = self._parts.begin()
        layout = await self._layout(key, deadline_s)
        partitions = self._partitions(key, layout, self._folded.get(key, 0))
        self._tracker.record_read(key, len(partitions))
        read = partial(self._store.totals, partitions)
        totals = await self._backoff.call(read, key, deadline_s)
        self._remember(key, totals[0])
        value = sum(total.value + total.writers for total in totals)
        if value and self._is_worth_folding(key, layout, totals[0]):
            with suppress(Retryable):  # the value is known; the next reader may fold
                await self._fold(key, layout, deadline_s)
        if not value:
            await self._parts.believe_nothing(key, deadline_s)
        return value

    async def fold(self, key: str) -> None:
        """Move what closed partitions and dead processes hold to the bare key: reads get cheaper.

        Only what is older than `token_ttl_s` is folded; from then on such tokens are refused.
        `value` calls this when it is worth it.
        """
        key = check_key(key)
        deadline_s = self._parts.begin()
        await self._fold(key, await self._layout(key, deadline_s), deadline_s)

    async def _fold(self, key: str, layout: Layout, deadline_s: float) -> None:
        sources = layout.partitions(key)
        fold = partial(self._store.fold, sources, sources[0], self._oldest_ms())
        await self._backoff.call(fold, key, deadline_s)

    async def _layout(self, key: str, deadline_s: float) -> Layout:
        return await self._backoff.call(partial(self._registry.layout, key), key, deadline_s)

    def _is_worth_folding(self, key: str, layout: Layout, bare: Total) -> bool:
        """Once a partition could be left out of reads, and daily to let old tokens go."""
        oldest_ms = self._oldest_ms()
        needed = len(self._partitions(key, layout, oldest_ms))
        read = len(self._partitions(key, layout, bare.folded_ms))
        return needed < read or bare.folded_ms < oldest_ms - int(self._token_ttl_s * 1000)

    def _partitions(self, key: str, layout: Layout, folded_ms: int) -> list[str]:
        """The bare partition first, then those of every epoch that is not folded away."""
        names = dict.fromkeys([partition_of(key, None)])
        for epoch in layout.overlapping(folded_ms, None):
            names.update(dict.fromkeys(epoch.partitions(key)))
        return list(names)

    def _remember(self, key: str, bare: Total) -> None:
        if bare.folded_ms and (key in self._folded or len(self._folded) < REMEMBERED_MAX):
            self._folded[key] = bare.folded_ms

    def _oldest_ms(self) -> int:
        """Tokens from before this are too old."""
        return max(self._registry.past_ms() - int(self._token_ttl_s * 1000), 0)

    def _check_age(self, time_ms: int) -> None:
        if time_ms < self._oldest_ms():
            raise TokenExpired(f"token is older than {self._token_ttl_s:,.0f} s: use a fresh one")
