"""Logs and counters that report each call to hooks. Only clients with such hooks use them."""

from __future__ import annotations

from typing import Any

from heatsink.primitives.hooks import Call, Hooks
from heatsink.primitives.subjects import AnyKey

from .counters import Counters
from .log import Entry, Log, Page, Receipt
from .routing import Parts
from .store import CounterStore, LogStore


class ObservedLog(Log):
    def __init__(self, store: LogStore, parts: Parts, hooks: Hooks) -> None:
        super().__init__(store, parts)
        self._hooks = hooks

    async def append(self, key: AnyKey, *arguments: Any, **named: Any) -> Receipt:
        with self._hooks.around(Call("log.append", str(key))):
            return await super().append(key, *arguments, **named)

    async def page(self, key: AnyKey, **named: Any) -> Page:
        with self._hooks.around(Call("log.page", str(key))):
            return await super().page(key, **named)

    async def get(self, key: AnyKey, *arguments: Any, **named: Any) -> Entry | None:
        with self._hooks.around(Call("log.get", str(key))):
            return await super().get(key, *arguments, **named)

    async def delete(self, key: AnyKey, *arguments: Any, **named: Any) -> bool:
        with self._hooks.around(Call("log.delete", str(key))):
            return await super().delete(key, *arguments, **named)

    async def erase(self, key: AnyKey) -> int:
        with self._hooks.around(Call("log.erase", str(key))):
            return await super().erase(key)


class ObservedCounters(Counters):
    def __init__(self, store: CounterStore, parts: Parts, token_ttl_s: float, hooks: Hooks) -> None:
        super().__init__(store, parts, token_ttl_s)
        self._hooks = hooks

    async def add(self, key: AnyKey, *arguments: Any, **named: Any) -> None:
        with self._hooks.around(Call("counters.add", str(key))):
            await super().add(key, *arguments, **named)

    async def value(self, key: AnyKey) -> int:
        with self._hooks.around(Call("counters.value", str(key))):
            return await super().value(key)
