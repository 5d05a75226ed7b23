"""What an error of a handler means for its item."""

from __future__ import annotations

from math import isnan
from random import Random

from heatsink.bulk.actions import Action, Fail, RateLimited, Retry
from heatsink.bulk.store import FAILED, RETRY, Setback
from heatsink.checks import shown

REASON_MAX = 500
UNKNOWN_S = (1.0, 5.0)
DELAY_S_MAX = 30 * 86_400.0


class TimedOut(Exception):
    """The handler did not return in time."""


class UnknownAction(Exception):
    """The worker that got the item has no such action; another may yet come that has."""

    def __init__(self, why: str, may_come: bool) -> None:
        super().__init__(why)
        self.may_come = may_come


class BadDelay(Exception):
    """A handler asked for a delay that is none."""


def verdict(
    action: Action, offset: int, attempt: int, error: BaseException, rng: Random
) -> tuple[str, Setback]:
    """The item's mark and why. `attempt` counts from 1."""
    after_s = None
    try:
        after_s = _asked_s(error)
    except BadDelay as bad:
        error = bad
    reason = _reason(error)
    if isinstance(error, RateLimited):
        return RETRY, Setback(offset, reason, _ms(after_s or 0.0), counted=False)
    if isinstance(error, UnknownAction) and error.may_come:
        return RETRY, Setback(offset, reason, _ms(rng.uniform(*UNKNOWN_S)), counted=False)
    if isinstance(error, Fail) or attempt >= action.max_attempts:
        return FAILED, Setback(offset, reason)
    if after_s is None:
        after_s = backoff_s(action, attempt, rng)
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
        wrong = f"{type(error).__name__} wants seconds, not {shown(asked)}"
        raise BadDelay(wrong) from None
    return delay_s


def backoff_s(action: Action, attempt: int, rng: Random) -> float:
    """Twice as long each time, and anything from half of that to all of it."""
    longest_s = min(action.backoff_s * 2.0 ** (attempt - 1), action.backoff_max_s)
    return longest_s * rng.uniform(0.5, 1.0)


def _reason(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a foreign error may have a broken __str__
        text = ""
    if not isinstance(error, Fail | Retry | RateLimited | TimedOut | BadDelay):
        name = type(error).__name__
        text = f"{name}: {text}" if text else name
    return text[:REASON_MAX].encode(errors="replace").decode()  # half a character has no code


def _ms(seconds: float) -> int:
    return int(min(max(seconds, 0.0), DELAY_S_MAX) * 1000)
