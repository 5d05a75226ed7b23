"""Reports the exceptions of handlers to the hooks, with their tracebacks, at a bounded rate.

Exceptions of one type in one action are of one kind. The first exception of each kind is reported
immediately. Further exceptions of this kind are counted. After `EVERY_S` seconds the next one is
reported with that count. So a batch of a million items that all fail writes one traceback a minute.
A handler raises `Fail`, `Retry` and `RateLimited` on purpose, so these are not reported.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from traceback import format_exception

from heatsink.bulk.actions import Context, Fail, RateLimited, Retry
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import Attribute, Hooks
from heatsink.primitives.words import counted

EVERY_S = 60.0
KINDS_MAX = 1_000
CHOSEN = (Fail, Retry, RateLimited)


@dataclass(slots=True)
class _Told:
    at_s: float
    untold: int = 0


class HandlerErrors:
    """The exceptions of one worker process's handlers. Its partitions share this object."""

    def __init__(self, hooks: Hooks, clock: Clock) -> None:
        self._hooks = hooks
        self._clock = clock
        self._told: dict[tuple[str, type[BaseException]], _Told] = {}

    def note(self, context: Context, error: BaseException, is_final: bool) -> None:
        """Report or count the exception of an item. `is_final` says that no attempt follows."""
        if isinstance(error, CHOSEN):
            return
        kind, now_s = (context.action, type(error)), self._clock.monotonic_s()
        told = self._told.get(kind)
        if told is not None and now_s - told.at_s < EVERY_S:
            told.untold += 1
            return
        while len(self._told) >= KINDS_MAX:
            self._told.pop(next(iter(self._told)))
        self._told[kind] = _Told(now_s)
        name = type(error).__name__
        since = f"; {counted(told.untold, f'more {name}')} since the last report" if told else ""
        then = "the item has failed" if is_final else "it is tried again"
        message = (
            f"batch {context.batch!r}: the handler of {context.action!r} raised {name} on item "
            f"{context.index}, attempt {context.attempt}: {then}{since}"
        )
        fields: dict[str, Attribute] = {
            "action": context.action,
            "batch": context.batch,
            "item": context.index,
            "attempt": context.attempt,
            "more": told.untold if told else 0,
        }
        shown = error if _is_encodable(error) else None
        self._hooks.event("bulk.error", message, logging.WARNING, shown, fields)


def _is_encodable(error: BaseException) -> bool:
    """Whether a log in UTF-8 can hold the traceback: a text with half a character cannot be."""
    try:
        "".join(format_exception(error)).encode()
    except UnicodeEncodeError:
        return False
    return True
