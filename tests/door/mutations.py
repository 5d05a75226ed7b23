"""Requests of the grammar, made wrong somewhere in their JSON: no SDK would send most of them."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from heatsink.door.protocol import Body

from .grammar import HOT
from .world import TABLE

NAMES = """
    TableName Key Item IndexName Limit Select ConsistentRead Segment TotalSegments Expected
    ReturnConsumedCapacity ReturnValues ReturnItemCollectionMetrics ConditionExpression
    ReturnValuesOnConditionCheckFailure FilterExpression ProjectionExpression UpdateExpression
    KeyConditionExpression AttributesToGet ExpressionAttributeNames ExpressionAttributeValues
    ExclusiveStartKey KeyConditions AttributeUpdates QueryFilter ScanFilter ConditionalOperator
    ScanIndexForward RequestItems TransactItems ClientRequestToken Unknown
"""
FIELDS = NAMES.split()


class Mutations:
    """Changes requests at random: wrong types, nulls, extra, missing and misplaced fields."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def of(self, parameters: Body) -> Body:
        """Return a changed copy of a request's parameters."""
        changed = deepcopy(parameters)
        for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
            self._change(changed)
        return changed

    def _change(self, parameters: Body) -> None:
        roll = self.rng.random()
        places = _places(parameters)
        if not places:
            return
        holder, place = self.rng.choice(places)
        if roll < 0.3:
            parameters[self.rng.choice(FIELDS)] = self._value()
        elif roll < 0.7:
            holder[place] = self._alike(holder[place])
        elif roll < 0.8:
            del holder[place]
        elif roll < 0.9 and isinstance(holder, dict):
            holder[self.rng.choice(["S", "N", "NULL", "M", "x", "Key", "Get"])] = self._value()
        else:
            holder[place] = self._value()

    def _alike(self, value: Any) -> Any:
        """Return a value that DynamoDB may read as the given one, or nearly so."""
        if isinstance(value, bool):
            return self.rng.choice([str(value).upper(), "yes", int(value)])
        if isinstance(value, int):
            return self.rng.choice([float(value), value + 0.5, str(value)])
        if isinstance(value, dict):
            return {**value, self.rng.choice(["N", "BOOL", "M", "x"]): None}
        return value if self.rng.random() < 0.5 else [value]

    def _value(self) -> Any:
        rng = self.rng
        key = {"pk": {"S": rng.choice(HOT)}, "sk": {"S": "META"}}
        get = {"Get": rng.choice([None, 5, {}, {"TableName": TABLE, "Key": key}])}
        of_table: Any = rng.choice([None, 5, {}, [], {"Keys": 5}, {"Keys": [key]}, [{}], [5]])
        plain = [None, None, None, 5, -1, 2.5, True, "", "x", "TRUE", TABLE]
        lists: list[Any] = [[], [[]], [None], [5], ["a"], [{}], [get]]
        maps = [{}, {"S": "x"}, {"x": 5}, {"x": None}, {"x": {"S": 5}}, {"S": None}, {"": {}}]
        return rng.choice([*plain, *lists, *maps, key, {TABLE: of_table}])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return all fields and elements within a value, each with what holds it."""
    if isinstance(value, dict):
        inner = list(value.items())
    else:
        inner = list(enumerate(value)) if isinstance(value, list) else []
    return [(value, at) for at, _ in inner] + [one for _, v in inner for one in _places(v)]
