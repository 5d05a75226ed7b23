"""The plain dictionary that the engine is held against, and what a read of it must find."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heatsink.emulator.rows import token_of
from tests.simulation.history import Violation

Place = tuple[str, str]
Item = dict[str, Any]
Rows = dict[Place, Item]
SLACK = 1e-6


class Plain:
    """`lagging` is the dictionary as it was some time ago: what eventual reads may see."""

    def __init__(self, lag_s: float) -> None:
        self.rows: Rows = {}
        self._old: Rows = {}
        self._coming: deque[tuple[float, Place, Item | None]] = deque()
        self._lag_s = lag_s

    def write(self, place: Place, item: Item | None, now_s: float) -> None:
        _store(self.rows, place, item)
        self._coming.append((now_s + self._lag_s, place, item))

    def seen(self, consistent: bool, now_s: float) -> Rows:
        while self._coming and self._coming[0][0] <= now_s:
            _, place, item = self._coming.popleft()
            _store(self._old, place, item)
        return self.rows if consistent else self._old


def _store(rows: Rows, place: Place, item: Item | None) -> None:
    if item is None:
        rows.pop(place, None)
    else:
        rows[place] = item


def place_of(item: Item) -> Place:
    return item["pk"]["S"], item["sk"]["S"]


def key_of(place: Place) -> Item:
    return {"pk": {"S": place[0]}, "sk": {"S": place[1]}}


def by_token(place: Place) -> tuple[int, str, str]:
    """The order of scans."""
    return token_of(place[0]), *place


@dataclass(frozen=True)
class Wanted:
    """Which rows a Query or Scan returns, and in which order."""

    belongs: Callable[[Place], bool]
    backwards: bool = False

    def of(self, rows: Rows) -> list[Place]:
        return sorted(filter(self.belongs, rows), key=by_token, reverse=self.backwards)

    def page(self, rows: Rows, after: Place | None, limit: int) -> list[Place]:
        """The next so many rows, whatever has changed since the page before."""
        places = self.of(rows)
        if after is not None:
            last = by_token(after)
            is_next = last.__gt__ if self.backwards else last.__lt__
            places = [place for place in places if is_next(by_token(place))]
        return places[:limit]


def check_page(answer: Item, expected: list[Place], rows: Rows, limit: int) -> None:
    """One page is a dictionary's, and tells where the next begins if there may be one."""
    found = [place_of(item) for item in answer["Items"]]
    if found != expected:
        raise Violation(f"a page holds {found}, not {expected}")
    if answer["Items"] != [rows[place] for place in expected]:
        raise Violation("a page holds rows as they are not")
    last = key_of(expected[-1]) if len(expected) == limit else None
    if answer.get("LastEvaluatedKey") != last:
        raise Violation(f"the next page begins after {answer.get('LastEvaluatedKey')}, not {last}")


def check_walk(before: Rows, after: Rows, wanted: Wanted, found: list[Item]) -> None:
    """All pages together: what stayed as it was is met once, nothing twice, all in order."""
    places = [place_of(item) for item in found]
    if places != sorted(set(places), key=by_token, reverse=wanted.backwards):
        raise Violation("over all pages a row comes twice or out of order")
    stayed = [place for place in wanted.of(before) if after.get(place) is before[place]]
    missing = [place for place in stayed if place not in places]
    if missing:
        raise Violation(f"{missing[0]} was there all the time and on no page")


class Allowances:
    """One key never gets more than one partition's limit, however partitions change.

    What a request costs beyond it is owed, and paid before the next one.
    """

    def __init__(self, limit: float, least: float) -> None:
        self._limit = limit
        self._least = least
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key: str, units: float, now_s: float) -> None:
        left, since_s = self._left.get(key, (self._limit, now_s))
        left = min(left + (now_s - since_s) * self._limit, self._limit)
        if left < self._least - SLACK:
            raise Violation(f"{key} was served when {left:.2f} units of its partition's were left")
        self._left[key] = left - units, now_s
