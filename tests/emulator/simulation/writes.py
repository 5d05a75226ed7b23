"""Writes as requests, and what they do to a plain dictionary."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.emulator.calls import TABLE

from .plain import Item, Place, key_of

Kind = Literal["Put", "Update", "Delete", "ConditionCheck"]
THERE, ABSENT, UNTOUCHED = "attribute_exists(pk)", "attribute_not_exists(pk)", "n = :none"
PADDING = ("", "", "", "." * 1_500)


@dataclass(frozen=True)
class Write:
    """`n` of an item is how often it was updated since it was put.

    With `grouped`, the write also sets `g` to `group`, or removes it.
    """

    kind: Kind
    place: Place
    value: str
    condition: str | None = None
    grouped: bool = False
    group: str | None = None

    def request(self) -> Item:
        """As a single request has it, and as an action of a transaction has it."""
        request: Item = {"TableName": TABLE}
        values: Item = {}
        if self.kind == "Put":
            request["Item"] = self._new_item()
        else:
            request["Key"] = key_of(self.place)
        if self.kind == "Update":
            request["UpdateExpression"] = f"SET x = :x{self._grouping()} ADD n :one"
            values |= {":x": {"S": self.value}, ":one": {"N": "1"}}
            values |= {":g": {"S": self.group}} if self.group else {}
        if self.condition:
            request["ConditionExpression"] = self.condition
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        if self.condition == UNTOUCHED:
            values[":none"] = {"N": "0"}
        return {**request, **({"ExpressionAttributeValues": values} if values else {})}

    def _grouping(self) -> str:
        if not self.grouped:
            return ""
        return ", g = :g" if self.group else " REMOVE g"

    def _group(self) -> Item:
        return {"g": {"S": self.group}} if self.group else {}

    def in_batch(self) -> Item:
        if self.kind == "Put":
            return {"PutRequest": {"Item": self._new_item()}}
        return {"DeleteRequest": {"Key": key_of(self.place)}}

    def _new_item(self) -> Item:
        item = {**key_of(self.place), "x": {"S": self.value}, "n": {"N": "0"}}
        return {**item, **self._group()}

    def holds(self, old: Item | None) -> bool:
        if self.condition == ABSENT:
            return old is None
        if self.condition == THERE:
            return old is not None
        return self.condition is None or (old is not None and old["n"]["N"] == "0")

    def result(self, old: Item | None) -> Item | None:
        if self.kind == "Put":
            return self._new_item()
        if self.kind == "Delete":
            return None
        if self.kind == "ConditionCheck":
            return old
        times = int(old["n"]["N"]) if old else 0
        item = {**key_of(self.place), "x": {"S": self.value}, "n": {"N": str(times + 1)}}
        return {**item, **self._group()}


class Writer:
    """Draws writes; every value is written once. `groups` are those that items may belong to."""

    def __init__(self, rng: Random, groups: tuple[str | None, ...] = ()) -> None:
        self._rng = rng
        self._groups = groups
        self._written = 0

    def write(self, kind: Kind, place: Place, conditions: bool = True) -> Write:
        self._written += 1
        value = f"{self._written}{self._rng.choice(PADDING)}"
        condition = None
        if kind == "ConditionCheck" or (conditions and self._rng.random() < 0.3):
            condition = self._rng.choice((THERE, ABSENT, UNTOUCHED))
        if not self._groups:
            return Write(kind, place, value, condition)
        group = self._groups[int(len(self._groups) * self._rng.random() ** 2)]
        return Write(kind, place, value, condition, True, group)
