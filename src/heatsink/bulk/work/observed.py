"""Wraps actions so that hooks observe the runs of handlers.

Only workers with hooks that observe calls use this.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from heatsink.bulk.actions import Action, Actions, Context
from heatsink.bulk.bulk import Bulk
from heatsink.errors import HeatsinkError
from heatsink.primitives.hooks import Call, Hooks

from .pool import call_handler

BATCHES_MAX = 1_000


def observed(actions: Actions, hooks: Hooks, bulk: Bulk) -> Actions:
    """Return the same actions, with the hooks of a `bulk.run` call around each handler."""
    return actions.wrapped(partial(_observed, hooks, _Traces(bulk)))


def _observed(hooks: Hooks, traces: _Traces, action: Action) -> Action:
    async def run(items: Any, contexts: Any) -> Any:
        every: list[Context] = [contexts] if action.together == 1 else contexts
        first, batches = every[0], {context.batch for context in every}
        links = [await traces.of(batch) for batch in sorted(batches)]
        call = Call(
            "bulk.run",
            attributes={
                "batch": first.batch,
                "action": first.action,
                "tenant": first.tenant,
                "attempt": first.attempt,
                "items": len(every),
                "item": first.index,
            },
            links=tuple(filter(None, links)),
        )
        with hooks.around(call):
            return await call_handler(action, items, contexts)

    return replace(action, handler=run, middleware=())  # is_async still says whether a thread runs


class _Traces:
    """The trace in which each batch was submitted. Each batch is looked up only once."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._known: dict[str, str] = {}

    async def of(self, batch: str) -> str:
        if batch not in self._known:
            while len(self._known) >= BATCHES_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[batch] = await self._find(batch)
        return self._known.get(batch, "")

    async def _find(self, batch: str) -> str:
        with suppress(HeatsinkError):  # the item runs without the link
            return await self._bulk.trace_of(batch)
        return ""
