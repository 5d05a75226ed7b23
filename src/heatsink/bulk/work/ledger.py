"""The slices that this process holds, and the outcomes that it has not yet sent to the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from heatsink.bulk.items import unpacked
from heatsink.bulk.store import BACK, FAILED, RUNNING, Outcome, Setback, Slice

logger = logging.getLogger("heatsink")
UNREADABLE = "its chunk cannot be read: the queue's data is damaged"
_RUNNING, _BACK, _FAILED = ord(RUNNING), ord(BACK), ord(FAILED)
_encoded = msgspec.msgpack.Encoder().encode
_decoded = msgspec.msgpack.Decoder(Setback).decode


class Held:
    """One slice under its lease."""

    __slots__ = ("_marks", "first", "items", "lost", "open", "setbacks", "slice", "told", "used_s")

    def __init__(self, claimed: Slice) -> None:
        self.slice = claimed
        self.first = claimed.start
        self.items: list[Any] = []
        self.open = claimed.count
        self.lost = False
        self.used_s = 0.0
        self.setbacks: list[Setback] = []
        self.told: Outcome | None = None
        self._marks = bytearray(RUNNING * claimed.count, "ascii")

    def unpack(self) -> None:
        """Decode the items; those of an unreadable chunk fail, so that the others can go on."""
        claimed = self.slice
        try:
            first, items = unpacked(claimed.body)
            self.first = first + claimed.start
            self.items = items[claimed.start : claimed.start + claimed.count]
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            logger.error("a chunk of batch %r cannot be read: %s", claimed.batch, error)
        for offset in range(len(self.items), claimed.count):
            self.mark(offset, _FAILED, 0.0, Setback(offset, UNREADABLE))

    def mark(self, offset: int, mark: int, used_s: float, setback: Setback | None = None) -> bool:
        """Set an item's outcome; False if it has one already, so that none counts twice."""
        if self._marks[offset] != _RUNNING:
            return False
        self._marks[offset] = mark
        self.open -= 1
        self.used_s += used_s
        if setback is not None:
            self.setbacks.append(setback)
        return True

    def mend(self) -> None:
        """Replace setbacks that cannot be encoded, so that the others can be sent."""
        self.setbacks = [_sound(setback) for setback in self.setbacks]

    def outcome(self) -> Outcome:
        return Outcome(
            self.slice.attempt, self._marks.decode(), int(self.used_s * 1e6), list(self.setbacks)
        )


Place = tuple[Held, int]
"""A slice, and the offset of an item in it."""


def _sound(setback: Setback) -> Setback:
    try:
        return _decoded(_encoded(setback))
    except (ValueError, TypeError, OverflowError):
        return Setback(setback.offset, "its reason could not be stored", 0, setback.counted)


class Ledger:
    """All held slices: `take` adds them, `take_news` returns the outcomes to send."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._changed: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def attempts(self) -> list[str]:
        return list(self._held)

    @property
    def has_news(self) -> bool:
        return bool(self._changed)

    def take(self, slices: Iterable[Slice]) -> list[Held]:
        """Add claimed slices; return those with items to run."""
        taken = [Held(claimed) for claimed in slices]
        for held in taken:
            held.unpack()
            self._held[held.slice.attempt] = held
            if held.open < held.slice.count:
                self.changed(held)
        return [held for held in taken if held.open]

    def changed(self, held: Held) -> None:
        self._changed[held.slice.attempt] = held

    def give_back(self, held: Held, offset: int) -> None:
        """Mark an item as not started, so that another worker may run it at once."""
        if held.mark(offset, _BACK, 0.0):
            self.changed(held)

    def take_news(self) -> list[tuple[Held, Outcome]]:
        news = [(held, held.outcome()) for held in self._changed.values()]
        self._changed.clear()
        for held, _ in news:
            held.used_s = 0.0
        return news

    def put_back(self, news: Iterable[tuple[Held, Outcome]]) -> None:
        """Keep outcomes that the store did not acknowledge; it counts every mark once."""
        for held, outcome in news:
            held.used_s += outcome.used_us / 1e6
            self._changed.setdefault(held.slice.attempt, held)

    def told(self, news: Iterable[tuple[Held, Outcome]]) -> None:
        for held, outcome in news:
            held.told = outcome
            if RUNNING not in outcome.marks:
                self._held.pop(held.slice.attempt, None)

    def lose(self, attempts: Iterable[str]) -> int:
        """Drop slices whose lease was lost; return how many of them still had open items."""
        lost = [self._held.pop(attempt, None) for attempt in attempts]
        for held in lost:
            if held is not None:
                held.lost = True
                self._changed.pop(held.slice.attempt, None)
        return sum(held is not None and held.open > 0 for held in lost)
