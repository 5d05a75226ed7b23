"""Follow-up batches: `then=` gets the items that were done, `otherwise=` those that failed.

When a batch ends, Heatsink submits one small batch of the built-in action `NEXT`, as it submits the
callback of `on_done`. The handler of this action reads what the batch has kept, and submits the
follow-up batches. The ids of all these batches are made from the id of the first batch. So a
repeated submission changes nothing, and each follow-up batch exists once, whichever process dies.

`retry_failed` starts the next *lap* of a batch. After each lap, `then` gets only the items that
were done in this lap.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Protocol

from msgspec.structs import replace

from heatsink.errors import InvalidSetting, NotFound, Unavailable
from heatsink.primitives.checks import check_number, check_text, check_whole, shown
from heatsink.primitives.clock import Clock

from .actions import DAY_S, Fail, check_action
from .batch import KEEP_MS, KEEP_SINGLE_MS, Batch, Failure, Next, Progress, parse_rate
from .changes import NEXT_MARK, NEXT_TRIES, OTHERWISE_MARK, THEN_MARK
from .results import Ask, KeptResult, ResultOptions, kept_by, read_results
from .store import Grants

DEPTH_MAX = 8
UNIQUE_MAX = 128
PRIORITY_MAX = 1_000
MEASURED_S = 60.0  # how long a measured distance between two clocks is used
Items = AsyncIterator[Any]


class FlowOptions(ResultOptions, total=False):
    """The options of `hs.bulk.submit` about results and follow-up batches."""

    then: Next | str | None
    """The action, or a `Next`, that gets the items that are done, with their results."""
    otherwise: Next | str | None
    """The action, or a `Next`, that gets the items that failed, with the reasons."""
    unique: str
    """A key, such as `"order-7"`. In each window, at most one batch of this action and tenant has
    it. A further submission with the key returns this batch."""
    within: float | timedelta
    """The length of the windows of `unique`, in whole seconds or as a `timedelta`. Windows begin at
    multiples of it since 1970 in UTC, by the clock of the queue's home."""


def flow_by(options: FlowOptions) -> dict[str, Any]:
    """Return the fields of the record that these options set. Raises `InvalidSetting`."""
    if "within" in options and "unique" not in options:
        raise InvalidSetting("`within` needs `unique`, the key", field="within")
    following = {
        name: checked(name, options[name])
        for name in ("then", "otherwise")
        if options.get(name) is not None
    }
    if "then" in following:
        options = {**options, "results": "keep"}
    return {**_window_kept_by(options), **kept_by(options), **following}


def _window_kept_by(options: FlowOptions) -> dict[str, int]:
    """Keep the record of a batch with a `unique` key until its window has surely ended."""
    if "unique" not in options:
        return {}
    return {"keep_ms": max(int(_seconds(options.get("within")) * 1000), KEEP_SINGLE_MS)}


def _seconds(within: Any) -> float:
    return within.total_seconds() if isinstance(within, timedelta) else within


def unique_id(id: str | None, action: str, tenant: str, options: FlowOptions, now_ms: int) -> str:
    """Return the id of the only batch with this `unique` key in the present time window.

    Windows are `within` seconds long. All batches with the same key, action and tenant get this id
    until the window ends.
    """
    key = check_text("unique", options.get("unique"), UNIQUE_MAX)
    if id is not None:
        raise InvalidSetting("`id` and `unique` cannot be used together: leave one out", field="id")
    within = options.get("within")
    if within is None:
        raise InvalidSetting("`unique` needs `within`, the window in seconds", field="within")
    length_s = _seconds(within)
    if check_number("within", length_s, 1, KEEP_MS / 1000, "seconds") != int(length_s):
        raise InvalidSetting("`within` must be whole seconds", field="within")
    if options.get("result_days", length_s / DAY_S) * DAY_S < length_s:
        raise InvalidSetting("`result_days` must be at least as long as `within`", field="within")
    digest = blake2b(f"{action}/{tenant}".encode(), digest_size=6, person=b"unique").hexdigest()
    window_s = now_ms // 1000 // int(length_s) * int(length_s)
    return f"unique:{key}:{digest}:{int(length_s)}:{window_s}"


class HomeTime:
    """The time of the queue's home, by which all processes choose the same window.

    The difference to this process's monotonic clock is measured once a minute. So the time is wrong
    by at most the duration of one call plus the drift of the clocks in a minute.
    """

    def __init__(self, ask: Callable[[], Awaitable[Grants]], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._ahead_ms = 0.0
        self._asked_s = float("-inf")

    async def now_ms(self) -> int:
        began_s = self._clock.monotonic_s()
        if began_s - self._asked_s > MEASURED_S:
            told_ms = (await self._ask()).now_ms
            now_s = self._clock.monotonic_s()
            self._ahead_ms, self._asked_s = told_ms - (began_s + now_s) / 2 * 1000, now_s
        return int(self._clock.monotonic_s() * 1000 + self._ahead_ms)


def checked(name: str, given: object, depth: int = 1) -> Next:
    """Return a follow-up as a `Next` whose fields are valid. Raises `InvalidSetting`."""
    if depth > DEPTH_MAX:
        raise InvalidSetting(f"{name}: at most {DEPTH_MAX} batches may follow", field=name)
    following = Next(given) if isinstance(given, str) else given
    if not isinstance(following, Next):
        wrong = f"{name} must be the name of an action, or a Next, not {shown(given)}"
        raise InvalidSetting(wrong, field=name)
    check_action(f"{name}.action", following.action)
    check_whole(f"{name}.priority", following.priority, -PRIORITY_MAX, PRIORITY_MAX)
    if following.rate is not None:
        parse_rate(following.rate)
    if following.results not in (None, "keep"):
        raise InvalidSetting(
            f"{name}.results must be 'keep' or None, not {shown(following.results)}", field=name
        )
    further = {
        each: checked(f"{name}.{each}", getattr(following, each), depth + 1)
        for each in ("then", "otherwise")
        if getattr(following, each) is not None
    }
    return replace(following, **further)


def actions_of(batch: Batch) -> list[tuple[str, str]]:
    """Return the actions of all batches that follow, each with the option that names it."""
    found: list[tuple[str, str]] = []
    left = [(name, getattr(batch, name)) for name in ("then", "otherwise")]
    while left:
        name, following = left.pop(0)
        if isinstance(following, Next):
            found.append((name, following.action))
            left += [(f"{name}.{each}", getattr(following, each)) for each in ("then", "otherwise")]
    return found


def following(
    batch: Batch, lap: int, ask: Ask, failures: AsyncIterator[Failure], now_ms: int
) -> list[tuple[Batch, Items]]:
    """Return the batches that follow this lap of `batch`, with their items."""
    found = []
    if batch.then is not None:
        wanted = _batch_of(batch, batch.then, f"{THEN_MARK}{lap}", now_ms)
        found.append((wanted, _done(batch, lap, ask)))
    if batch.otherwise is not None and batch.lap == lap:  # else they run again
        wanted = _batch_of(batch, batch.otherwise, f"{OTHERWISE_MARK}{lap}", now_ms)
        found.append((wanted, _failed(batch, failures)))
    return found


def _batch_of(batch: Batch, following: Next, mark: str, now_ms: int) -> Batch:
    options: FlowOptions = {"then": following.then, "otherwise": following.otherwise}
    return Batch(
        id=f"{batch.id}{mark}",
        action=following.action,
        tenant=batch.tenant,
        submitted_ms=now_ms,
        priority=following.priority or batch.priority,
        weight=batch.weight,
        rate=parse_rate(following.rate) if following.rate is not None else None,
        trace=batch.trace,
        **flow_by({**options, "results": following.results}),
    )


async def _done(batch: Batch, lap: int, ask: Ask) -> Items:
    """Yield the items that were done in this lap.

    Raises `Unavailable` if results are missing: then nothing is submitted.
    """
    count = 0
    async for result in read_results(batch, ask, with_items=True):
        count += 1
        if result.lap == lap:
            if batch.then is None or not batch.then.each:
                yield {"index": result.index, "item": result.item, "result": result.value}
                continue
            for value in _list_of(result):
                yield value
    done = sum(end.done for end in batch.ends)
    if count < done:  # more, if a later lap has begun
        raise Unavailable(f"{done:,} items are done, but only {count:,} results were found")


def _list_of(result: KeptResult) -> list[Any]:
    if not isinstance(result.value, list):
        raise Fail(f"each=True needs a list from the handler, not {shown(result.value)}")
    return result.value


async def _failed(batch: Batch, failures: AsyncIterator[Failure]) -> Items:
    count = 0
    async for failure in failures:
        count += 1
        yield {
            "index": failure.index,
            "item": failure.item,
            "reason": failure.reason,
            "attempts": failure.attempts,
        }
    failed = sum(end.failed for end in batch.ends)
    if count != failed:
        raise Unavailable(f"only {count:,} of {failed:,} failed items were found")


class _Waits(Protocol):
    async def wait(self, id: str, timeout_s: float | None = None) -> Progress: ...

    async def tell_done(self, batch: Batch) -> None: ...


async def come(
    bulk: _Waits, get: Callable[[str], Awaitable[Batch]], id: str, timeout_s: float | None
) -> None:
    """Wait until the follow-up batch `id` is submitted, or certainly will never be submitted.

    `get` returns the record of a batch, and raises `NotFound` if there is none.
    """
    try:
        await get(id)
    except NotFound:
        parent, submitter = parent_of(id)
        progress = await bulk.wait(parent, timeout_s)
        if progress.state not in ("done", "failed"):
            return
        await bulk.tell_done(await get(parent))
        for tries in range(NEXT_TRIES):
            name = f"{submitter}.{tries}" if tries else submitter
            if (await bulk.wait(name, timeout_s)).state == "done":
                return
            await bulk.tell_done(await get(name))


def parent_of(id: str) -> tuple[str, str]:
    """Return the batch that the follow-up `id` follows, and the id of the batch that submits it."""
    at, mark = max((id.rfind(mark), mark) for mark in (THEN_MARK, OTHERWISE_MARK))
    parent, lap = id[:at], id[at + len(mark) :]
    return parent, f"{parent}{NEXT_MARK}{lap}"
