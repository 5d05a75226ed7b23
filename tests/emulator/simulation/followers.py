"""What follows a table: its indexes and its stream, and what they must show of the dictionary."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from heatsink.emulator.rows import token_of
from tests.simulation.history import Violation

from .plain import Item, Place, Rows, place_of

GLOBAL, LOCAL = "by-g", "local-g"
Order = tuple[Any, ...]


def group_of(item: Item) -> str | None:
    found: str | None = item.get("g", {}).get("S")
    return found


def order_of(item: Item) -> Order:
    """The place of an item in the global index: by hash of its group, then by `n` and key."""
    group = group_of(item) or ""
    return token_of(group), group, int(item["n"]["N"]), *place_of(item)


def entries(rows: Rows, group: str | None = None) -> list[Item]:
    """The items in the global index, in its order: all, or those of one group."""
    found = [item for item in rows.values() if group_of(item) is not None]
    return sorted((one for one in found if group in (None, group_of(one))), key=order_of)


def local_entries(rows: Rows, key: str) -> list[Item]:
    """The items of one partition key in the local index, in its order."""
    found = [one for one in rows.values() if one["pk"]["S"] == key and group_of(one) is not None]
    return sorted(found, key=lambda one: (group_of(one), one["sk"]["S"]))


def shown(item: Item, projection: str) -> Item:
    """What an entry holds of an item."""
    names = {"ALL": item.keys(), "KEYS_ONLY": {"pk", "sk", "g", "n"}}
    wanted = names.get(projection, {"pk", "sk", "g", "n", "x"})
    return {name: value for name, value in item.items() if name in wanted}


class Lagging:
    """The dictionary as a global index may show it: some recent version, never an older one.

    A read that shows one version rules out all earlier ones for later reads.
    """

    def __init__(self, lag_s: float) -> None:
        self._lag_s = lag_s
        self._rows: Rows = {}
        self._coming: deque[tuple[float, Place, Item | None]] = deque()

    def write(self, place: Place, item: Item | None, now_s: float) -> None:
        self._coming.append((now_s + self._lag_s, place, item))

    def versions(self, now_s: float) -> Iterator[Rows]:
        """Yield every version that a read may show, oldest first. What is yielded last stays."""
        while self._coming and self._coming[0][0] <= now_s:
            self._apply()
        yield self._rows
        while self._coming:
            self._apply()
            yield self._rows

    def _apply(self) -> None:
        _, place, item = self._coming.popleft()
        if item is None:
            self._rows.pop(place, None)
        else:
            self._rows[place] = item


class Changes:
    """Every change of every item, to compare with the records of a stream."""

    def __init__(self) -> None:
        self._made: dict[Place, list[tuple[Item | None, Item | None]]] = {}
        self._read: dict[Place, int] = {}

    def write(self, place: Place, old: Item | None, new: Item | None) -> None:
        if old != new:
            self._made.setdefault(place, []).append((old, new))

    def read(self, records: list[Any]) -> None:
        """Raise unless each record is the next change of its item."""
        for record in records:
            data = record["dynamodb"]
            place = data["Keys"]["pk"]["S"], data["Keys"]["sk"]["S"]
            number = self._read.get(place, 0)
            made = self._made.get(place, [])
            found = data.get("OldImage"), data.get("NewImage")
            if number >= len(made) or made[number] != found:
                raise Violation(f"change {number} of {place} is not what a stream tells: {found}")
            self._read[place] = number + 1

    def check_all_read(self) -> None:
        for place, made in self._made.items():
            if self._read.get(place, 0) != len(made):
                raise Violation(f"a stream tells {self._read.get(place, 0)} changes of {place}")

    def again(self) -> Changes:
        """The same changes, none of them read."""
        fresh = Changes()
        fresh._made = self._made
        return fresh
