"""What the exceptions of handlers mean for their items, and how they are reported.

The hooks get the exceptions with their tracebacks, at a bounded rate.

Exceptions of one type in one action are of one kind. The first exception of each kind is reported
immediately. Further exceptions of this kind are counted. After `EVERY_S` seconds the next one is
reported with that count. So a batch of a million items that all fail writes one traceback a minute.
A handler raises `Fail`, `Retry` and `RateLimited` on purpose, so these are not reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from random import Random
from traceback import format_exception

from heatsink.bulk.actions import Action, Context, Fail, RateLimited, Retry
from heatsink.bulk.store import (
    BACK,
    FAILED,
    RETRY,
    Handover,
    Outcome,
    QueueStores,
    Setback,
    Slice,
)
from heatsink.errors import HeatsinkError
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import Attribute, Hooks
from heatsink.primitives.retry import Pauses
from heatsink.primitives.words import counted

logger = logging.getLogger("heatsink")
EVERY_S = 60.0
REFUSED_S_MAX = 3_600.0
KINDS_MAX = 1_000
REASON_MAX = 500
UNKNOWN_S = (1.0, 5.0)
DELAY_S_MAX = 30 * 86_400.0
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
    """Return whether a log in UTF-8 can hold the traceback.

    It cannot if the traceback quotes text with half a surrogate pair.
    """
    try:
        "".join(format_exception(error)).encode()
    except UnicodeEncodeError:
        return False
    return True


async def slow_down(
    stores: QueueStores, partition: int, refused: Slice, per_s: float, after_s: float
) -> None:
    """Record that a downstream service refused an item. Items were started at the rate `per_s`."""
    after_ms = int(min(after_s, REFUSED_S_MAX) * 1000)
    try:
        await stores.limits.refused(refused.lane, per_s, after_ms)
        if not refused.limited:
            await stores.queue.steer(partition, refused.part, "limit")
    except HeatsinkError as error:
        logger.info("the queue did not record that an item was rate-limited: %s", error)


async def give_back(stores: QueueStores, handover: Handover) -> None:
    """Put a single back that came too late, if no claim has taken it back meanwhile."""
    outcome = Outcome(handover.slice.attempt, BACK, 0)
    await stores.queue.settle(handover.partition, [outcome], [], 1)


def warn_of_blocking(late_s: float, actions: Sequence[str]) -> None:
    logger.warning(
        "the event loop was blocked for %.1f s, probably by a handler of %s: "
        "make the handler a plain function (def), which runs in a thread",
        late_s,
        ", ".join(actions) or "some action",
    )


# -- what an exception means for its item -------------------------------------------------------


class BadAnswer(Exception):
    """A handler returned a value that is not a valid result for its items."""


class TimedOut(Exception):
    """The handler did not return in time."""


class LeaseLost(Exception):
    """A lease of the item, or of its place at a limit, ended, so the pool cancelled the handler."""


class UnknownAction(Exception):
    """This worker does not have the item's action. If `may_come`, another worker may have it."""

    def __init__(self, why: str, may_come: bool) -> None:
        super().__init__(why)
        self.may_come = may_come


class BadDelay(Exception):
    """A handler asked for a delay that is not a number of seconds."""


TOLD_ELSEWHERE = (
    TimedOut,
    LeaseLost,
    UnknownAction,
    asyncio.CancelledError,
)  # and without a traceback


def verdict(
    action: Action, offset: int, attempt: int, error: BaseException, rng: Random
) -> tuple[str, Setback]:
    """Return the outcome of an item whose handler raised `error`.

    The outcome is a mark (retry or failed) and a setback: the reason, and the delay before the
    retry. `attempt` counts from 1.
    """
    after_s = None
    try:
        after_s = _asked_s(error)
    except BadDelay as bad:
        error = bad
    reason = _reason(error)
    if isinstance(error, RateLimited):
        return RETRY, Setback(offset, reason, _ms(after_s or 0.0), counted=False)
    if isinstance(error, LeaseLost):
        return RETRY, Setback(offset, reason, 0, counted=False)
    if isinstance(error, UnknownAction) and error.may_come:
        return RETRY, Setback(offset, reason, _ms(rng.uniform(*UNKNOWN_S)), counted=False)
    if isinstance(error, Fail) or attempt >= action.max_attempts:
        return FAILED, Setback(offset, reason)
    if after_s is None:
        pauses = Pauses(action.backoff_s, action.backoff_max_s, jitter=0.5)
        after_s = pauses.after(attempt, rng)
    return RETRY, Setback(offset, reason, _ms(after_s))


def _asked_s(error: BaseException) -> float | None:
    if not isinstance(error, Retry | RateLimited):
        return None
    asked = error.after_s if isinstance(error, Retry) else error.retry_after_s
    if asked is None:
        return None
    try:
        delay_s = float("nan") if isinstance(asked, str | bytes) else float(asked)
    except (TypeError, ValueError, OverflowError):
        delay_s = float("nan")
    if isnan(delay_s):
        wrong = f"{type(error).__name__} takes a number of seconds, not {shown(asked)}"
        raise BadDelay(wrong) from None
    return delay_s


def _reason(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a foreign error may have a broken __str__
        text = ""
    if not isinstance(error, Fail | Retry | RateLimited | TimedOut | BadDelay):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return text[:REASON_MAX].encode(errors="replace").decode()  # lone surrogates


def _ms(seconds: float) -> int:
    return int(min(max(seconds, 0.0), DELAY_S_MAX) * 1000)
