"""What an error of a handler means for its item."""

from __future__ import annotations

from random import Random

from heatsink.bulk.actions import Action, Fail, RateLimited, Retry
from heatsink.bulk.store import FAILED, RETRY, Setback

REASON_MAX = 500


class TimedOut(Exception):
    """The handler did not return in time."""


def verdict(
    action: Action, offset: int, attempt: int, error: BaseException, rng: Random
) -> tuple[str, Setback]:
    """The item's mark and why. `attempt` counts from 1."""
    reason = _reason(error)
    if isinstance(error, RateLimited):
        return RETRY, Setback(offset, reason, _ms(error.retry_after_s), counted=False)
    if isinstance(error, Fail) or attempt >= action.max_attempts:
        return FAILED, Setback(offset, reason)
    after_s = error.after_s if isinstance(error, Retry) else None
    if after_s is None:
        after_s = backoff_s(action, attempt, rng)
    return RETRY, Setback(offset, reason, _ms(after_s))


def backoff_s(action: Action, attempt: int, rng: Random) -> float:
    """Twice as long each time, and anything from half of that to all of it."""
    longest_s = min(action.backoff_s * 2.0 ** (attempt - 1), action.backoff_max_s)
    return longest_s * rng.uniform(0.5, 1.0)


def _reason(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a foreign error may have a broken __str__
        text = ""
    if isinstance(error, Fail | Retry | RateLimited | TimedOut):
        return text[:REASON_MAX]
    name = type(error).__name__
    return f"{name}: {text}"[:REASON_MAX] if text else name


def _ms(seconds: float) -> int:
    try:
        return max(int(seconds * 1000), 0)
    except (TypeError, ValueError, OverflowError):
        return 0
