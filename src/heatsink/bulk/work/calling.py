"""What a pool calls: a handler that takes many items, or workers outside this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Protocol

from heatsink.bulk.limits import Needs
from heatsink.bulk.store import Setback

from .handler_errors import BadAnswer
from .held import Held


class Done(NamedTuple):
    """The handler ran the item, and returned `value`."""

    value: Any


def outcomes_of(answer: Any, count: int, keeps: bool) -> list[Done | BaseException]:
    """Convert the return value of a handler that took `count` items into one outcome per item.

    The handler returns None if all items are done. Otherwise it returns a list, with an exception
    for each item that is not done. For items that are done, the list has None, or the result if the
    batch `keeps` results.
    """
    if answer is None:
        return [Done(None)] * count
    is_list = isinstance(answer, Iterable) and not isinstance(answer, str | bytes | dict)
    results = list(answer) if is_list else []
    is_right = keeps or all(r is None or isinstance(r, BaseException) for r in results)
    if len(results) != count or not is_right:
        word = "a result" if keeps else "None"
        wanted = f"a list with {word} or an exception for each of the {count} items"
        return [BadAnswer(f"the handler must return None, or {wanted}")] * count
    return [r if isinstance(r, BaseException) else Done(r) for r in results]


Refused = tuple[str, Setback]
"""The outcome of an item that could not be handed over: a mark, and the reason."""


class RemoteHandover(Protocol):
    """Hands items over to workers outside this process, which report the outcomes themselves."""

    def takes(self, action: str) -> bool:
        """Return whether these workers run the action, and not this process."""

    async def hand_over(
        self, partition: int, held: Held, needs: Needs, pace: float
    ) -> Refused | None:
        """Give the only item of a slice to a worker. Returns the outcome of one that nobody takes.

        `needs` are the item's needs, and `pace` is how many items the partition starts a second.
        """


HandOver = Callable[[Held], Awaitable[Refused | None]]
"""Gives the only item of a slice to a worker outside this process: see `Elsewhere.hand_over`."""
