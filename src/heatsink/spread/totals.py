"""A process's own running totals, written under a name that is placed like a token."""

from __future__ import annotations

from functools import partial

from heatsink.checks import check_whole
from heatsink.registry.layout import Layout

from .parts import Parts
from .store import CounterStore, Running

AMOUNT_MAX = 2**53
AGE_MS_MAX = 3_600_000


def check_amount(amount: object) -> None:
    check_whole("amount", amount, -AMOUNT_MAX, AMOUNT_MAX)


class Writer:
    """The name of one process's totals for one counter. Its partition never changes."""

    def __init__(self, raw: bytes, minted_ms: int, partition: str, layout: Layout) -> None:
        self.written = Running()
        self.raw = raw
        self.minted_ms = minted_ms
        self.partition = partition
        self.layout = layout


class TotalsStore:
    def __init__(self, store: CounterStore, parts: Parts, token_ttl_s: float) -> None:
        self.clock = parts.clock
        self.owner = parts.owner
        self._age_ms_max = min(AGE_MS_MAX, int(token_ttl_s * 1000 / 4))
        self._store = store
        self._parts = parts

    def is_good(self, key: str, writer: Writer) -> bool:
        """Whether a writer's name would be placed where it is if it were minted now."""
        registry = self._parts.registry
        young = registry.past_ms() - writer.minted_ms < self._age_ms_max
        return young and registry.view.layout(key) is writer.layout

    def begin(self) -> float:
        return self._parts.begin()

    async def new_writer(self, key: str, deadline_s: float) -> Writer:
        router = self._parts.router
        layout = self._parts.registry.view.layout(key)
        raw, time_ms = await router.token(deadline_s)
        partition, _ = await router.place_soon(key, raw, time_ms, deadline_s)
        return Writer(raw, time_ms, partition, layout)

    async def write(
        self, key: str, writer: Writer, to: Running, deadline_s: float
    ) -> Running | None:
        """Set the totals if they are smaller; see `CounterStore.raise_to`."""
        self._parts.tracker.record(key)
        raise_to = self._store.raise_to
        attempt = partial(raise_to, writer.partition, writer.raw, writer.minted_ms, to)
        return await self._parts.backoff.call(attempt, key, deadline_s)
