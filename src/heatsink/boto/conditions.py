"""What a `Key(...)` condition asks: which partition key, and which range of sort keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heatsink.errors import InvalidSetting

from .names import check_partition_value

RANGES = ("=", "<", "<=", ">", ">=", "BETWEEN", "begins_with")
CURE = "use Key(partition_key).eq(value), alone or & one condition on the sort key"


@dataclass(frozen=True)
class Asked:
    """`lowest` and `highest` bound the sort keys, both included; None is no bound."""

    key: str
    partition: Any  # boto3's Key of the partition key
    sort: Any = None
    lowest: Any = None
    highest: Any = None

    def at(self, physical: str) -> Any:
        """The same condition on one partition of the table."""
        where = self.partition.eq(physical)
        return where if self.sort is None else where & self.sort


def read_condition(condition: Any, partition_key: str, sort_key: str) -> Asked:
    operator, values = _parts(condition)
    halves = values if operator == "AND" else (condition,)
    by_name: dict[str, Any] = {}
    for half in halves:
        by_name[_parts(half)[1][0].name] = half
    if len(by_name) != len(halves) or not {partition_key} <= by_name.keys() <= {
        partition_key,
        sort_key,
    }:
        raise InvalidSetting(f"KeyConditionExpression names {', '.join(by_name)}: {CURE}")
    operator, (partition, key) = _parts(by_name[partition_key])
    if operator != "=":
        raise InvalidSetting(f"KeyConditionExpression has {partition_key} {operator}: {CURE}")
    return _with_range(check_partition_value(key), partition, by_name.get(sort_key))


def _parts(condition: Any) -> tuple[str, tuple[Any, ...]]:
    try:
        expression = condition.get_expression()
        operator, values = expression["operator"], tuple(expression["values"])
    except (AttributeError, KeyError, TypeError):
        raise InvalidSetting(f"KeyConditionExpression must be made with Key(…): {CURE}") from None
    if operator == "AND" or (operator in RANGES and hasattr(values[0], "name")):
        return operator, values
    raise InvalidSetting(f"KeyConditionExpression cannot have {operator}: {CURE}")


def _with_range(key: str, partition: Any, sort: Any) -> Asked:
    if sort is None:
        return Asked(key, partition)
    operator, (_, *values) = _parts(sort)
    lowest = values[0] if operator not in ("<", "<=") else None
    highest = values[-1] if operator in ("=", "<", "<=", "BETWEEN") else None
    return Asked(key, partition, sort, lowest, highest)
