"""Retries with exponential backoff and full jitter, until a deadline.

The deadline belongs to the whole call, which passes it to each of its steps. An attempt that is
still running at the deadline is cancelled. The store may still apply the request, so the outcome is
unknown, as after any timeout.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

from heatsink.errors import Overloaded, Retryable, Throttled
from heatsink.heat.count import Tracker
from heatsink.primitives.checks import CheckedStruct, check_number
from heatsink.primitives.clock import Clock
from heatsink.primitives.cut import Cut
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.primitives.keys import key_of
from heatsink.primitives.retry import FailedAttempt, Pauses, Retrier
from heatsink.registry.decisions import View

UNANSWERED = (
    "the store had not answered at the deadline: check its health, the network and how many "
    "calls this process makes at once, or raise deadline_s"
)
Result = TypeVar("Result")


class Retries(CheckedStruct, frozen=True):
    """How often and how long a call is retried: exponential backoff with full jitter.

    With `Retries(deadline_s=2.0)`, a call gives up after two seconds. An invalid value raises
    `InvalidSetting`.
    """

    first_s: float = 0.02
    """The longest pause before the first retry. It doubles with each further retry."""
    longest_s: float = 0.5
    """The longest pause between two attempts."""
    deadline_s: float = 10.0
    """How long the whole call may take. An attempt that is still running then is cancelled.

    0 means one attempt without Heatsink's timeout, and no retry.
    """

    def __post_init__(self) -> None:
        check_number("longest_s", self.longest_s, 0.001, 3600)
        check_number("first_s", self.first_s, 0.0001, self.longest_s)
        check_number("deadline_s", self.deadline_s, 0, 86_400)


class Backoff:
    """Retries a failed request to the store, and counts throttled attempts as heat."""

    def __init__(
        self,
        retries: Retries,
        clock: Clock,
        rng: Random,
        tracker: Tracker,
        view: View,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self.patience_s = retries.deadline_s
        self._clock = clock
        self._retrier = Retrier(Pauses(2 * retries.first_s, retries.longest_s), clock, rng)
        self._tracker = tracker
        self._view = view
        self._hooks = hooks
        self._cut = Cut(clock, UNANSWERED)
        self.table_refusal: str | None = None  # last throttling that more buckets would not cure

    def deadline_s(self) -> float:
        """Return the deadline of a call that starts now, on the monotonic clock."""
        return self._clock.monotonic_s() + self.patience_s

    def outlasts(self, attempt_s: float) -> bool:
        """Return whether a first attempt of `attempt_s` seconds ends before the call's deadline."""
        return attempt_s < self.patience_s

    async def call(
        self, attempt: Callable[[], Awaitable[Result]], key: str, deadline_s: float
    ) -> Result:
        """Run one step of a call, with retries until `deadline_s` on the monotonic clock.

        Throttled attempts count as heat of `key`. Steps that concern no key, such as reads of the
        registry, pass an empty `key`.
        """
        try:
            return await self._once(attempt, deadline_s)
        except Retryable as refusal:
            return await self.after(refusal, attempt, key, deadline_s)

    def cut(self, deadline_s: float) -> Cut:
        """Return the timeout for an attempt that the caller makes without `call`."""
        return self._cut(deadline_s if self.patience_s else math.inf)

    async def _once(self, attempt: Callable[[], Awaitable[Result]], deadline_s: float) -> Result:
        with self.cut(deadline_s):
            return await attempt()

    async def after(
        self,
        refusal: Retryable,
        attempt: Callable[[], Awaitable[Result]],
        key: str,
        deadline_s: float,
    ) -> Result:
        """Repeat `attempt`, whose first try raised `refusal`, until success or until `deadline_s`.

        `deadline_s` is on the monotonic clock. Throttled attempts count as heat of `key`.
        """
        again = partial(self._once, attempt, deadline_s)
        check = partial(self._check, key, deadline_s, [refusal])
        return await self._retrier.after(refusal, again, check)

    async def begin(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Run a first request at start-up.

        Retry it only if it is throttled; raise any other error.
        """
        try:
            return await attempt()
        except Throttled as refusal:
            return await self.after(refusal, attempt, "", self.deadline_s())

    async def persist(self, attempt: Callable[[], Awaitable[Result]], key: str) -> Result:
        """Run a long attempt without a timeout.

        If it fails, retry it as a call would that starts at the time of the failure: until this
        call's deadline.
        """
        try:
            return await attempt()
        except Retryable as refusal:
            check = partial(self._check, key, self.deadline_s(), [refusal])
            return await self._retrier.after(refusal, attempt, check)

    def _check(
        self, key: str, deadline_s: float, answers: list[Retryable], refused: FailedAttempt
    ) -> None:
        """Count throttling as heat of `key`, and raise `Overloaded` at the deadline.

        `answers` holds the error of the attempt before. The last attempt may be cut off by the
        deadline, without an answer of the store. Then the message quotes the error of the attempt
        before, which probably names the cause.
        """
        error, attempts, next_s = refused
        if isinstance(error, Throttled):
            self._note(key, error)
        self._tell(key, error)
        if isinstance(error, Overloaded) or next_s > deadline_s:
            times = "once" if attempts == 1 else f"{attempts} times"
            is_cut_off = str(error) == UNANSWERED and answers[0] is not error
            before = f". The attempt before: {answers[0]}" if is_cut_off else ""
            text = f"tried {times} within {self.patience_s:g} s: {error}{before}"
            raise Overloaded(text) from error
        answers[0] = error

    def _tell(self, key: str, refusal: Retryable) -> None:
        name = "call.throttled" if isinstance(refusal, Throttled) else "call.retried"
        message = f"retrying after: {refusal}"
        self._hooks.event(name, message, logging.DEBUG, fields={"key": key})

    def _note(self, key: str, refusal: Throttled) -> None:
        if not refusal.is_cured_by_buckets:
            self.table_refusal = str(refusal)
        elif key and self._is_in_use(key, refusal.partition):
            self._tracker.record_throttle(key)

    def _is_in_use(self, key: str, partition: str) -> bool:
        """Whether new rows go to this partition.

        More buckets do not relieve a partition that only older epochs use.
        """
        return self._view.layout(key).epochs[-1].uses(key_of(partition)[1])
