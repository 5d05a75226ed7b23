"""Retries: repeat an attempt after growing pauses until it succeeds or the caller gives up.

Pauses double up to a ceiling and have jitter. So callers that were refused together do not retry
together. `jitter` is the random share of a pause. With 1 (full jitter) a pause has any length up to
its ceiling; with 0.5 it has at least half of the ceiling.

The caller decides what to repeat and for how long. Before each pause, the caller's `check` gets the
refusal as `FailedAttempt`. To give up, `check` raises an error: for example at a deadline, after
some number of attempts, or when the caller is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from random import Random
from typing import NamedTuple, TypeVar

from heatsink.errors import Retryable

from .clock import Clock

DOUBLINGS_MAX = 30
Result = TypeVar("Result")
_longest_s: ContextVar[float] = ContextVar("longest_s", default=inf)


class Pauses(NamedTuple):
    """How long to wait between attempts.

    The longest possible pause is `first_s` at first. It doubles with each attempt, up to
    `longest_s`. Each pause is shorter than that by a random share of at most `jitter`.
    """

    first_s: float
    longest_s: float
    jitter: float = 1.0

    def after(self, refusals: int, rng: Random) -> float:
        """Return the pause in seconds after the attempt has failed `refusals` times in a row."""
        ceiling_s = min(self.first_s * 2.0 ** min(refusals - 1, DOUBLINGS_MAX), self.longest_s)
        return ceiling_s * rng.uniform(1.0 - self.jitter, 1.0)


@contextmanager
def retrying_for(longest_s: float) -> Iterator[None]:
    """Let the calls of this task retry for at most `longest_s` seconds inside the block.

    This is for callers that prefer an early error to a late answer. It has an effect only on calls
    that respect `shortened`.
    """
    before = _longest_s.set(longest_s)
    try:
        yield
    finally:
        _longest_s.reset(before)


def shortened(deadline_s: float) -> float:
    """Return `deadline_s`, a number of seconds, or that of `retrying_for` if it is shorter.

    Both count from the first attempt.
    """
    return min(deadline_s, _longest_s.get())


class FailedAttempt(NamedTuple):
    """An attempt that failed. The next attempt would start at `next_s` on the monotonic clock."""

    error: Retryable
    attempts: int
    next_s: float


class Retrier:
    """Repeats an attempt while it raises `Retryable`. Any other error is raised to the caller."""

    def __init__(self, pauses: Pauses, clock: Clock, rng: Random) -> None:
        self._pauses = pauses
        self._clock = clock
        self._rng = rng

    async def after(
        self,
        error: Retryable,
        attempt: Callable[[], Awaitable[Result]],
        check: Callable[[FailedAttempt], None],
    ) -> Result:
        """Repeat `attempt`, whose first try raised `error`, until it succeeds or `check` raises."""
        attempts = 1
        while True:
            pause_s = self._pauses.after(attempts, self._rng)
            check(FailedAttempt(error, attempts, self._clock.monotonic_s() + pause_s))
            await self._clock.sleep(pause_s)
            try:
                return await attempt()
            except Retryable as again:
                error = again
                attempts += 1
