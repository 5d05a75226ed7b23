"""Key conditions of queries: which partition key, and which range of sort keys.

A KeyConditionExpression and the legacy KeyConditions are parsed to the same form: one test for each
attribute. The key schema is needed only after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.keys import IndexSchema, KeyPart, Part, Schema
from heatsink.stores.dynamodb.wire.requests import Condition as LegacyCondition
from heatsink.stores.dynamodb.wire.requests import Names, Values
from heatsink.stores.dynamodb.wire.values import Item, Native, Value, kind_of

from .conditions import (
    BeginsWith,
    Between,
    Both,
    Compare,
    Condition,
    Contains,
    Either,
    Exists,
    HasType,
    Negation,
    OneOf,
)
from .legacy import check_condition, condition_on
from .operands import Path, Placeholder, Scope
from .parser import parse_condition
from .reading import KEYS

T = TypeVar("T")
PLANS_KEPT = 2_048
NOT_SUPPORTED = "Query key condition not supported"
WRONG_CONDITION = "Invalid condition in KeyConditionExpression: "
MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
OPERATORS = {"=": "EQ", "<": "LT", "<=": "LE", ">": "GT", ">=": "GE"}
TESTS_MAX = 8  # of an index whose key has eight attributes
KeySchema = Schema | IndexSchema
STARTING_KEY = "The provided starting key is invalid"
TOO_MANY = "Conditions can be of length 1 or 2 only"


class Bounds(NamedTuple):
    """A range of sort keys: a lower and an upper bound (None: no bound), or a prefix.

    The bounds of an index are tuples, which may be shorter than its sort keys. A tuple stands for
    all sort keys that begin with it.
    """

    low: Part | None = None
    low_included: bool = True
    high: Part | None = None
    high_included: bool = True
    prefix: Part | None = None


EVERYTHING = Bounds()


class KeyTest(msgspec.Struct, frozen=True):
    """A test of one key attribute: an operator, as legacy conditions name it, and its values.

    `begins_with(s, :p)` becomes `KeyTest("BEGINS_WITH", [value of :p])`.
    """

    operator: str
    values: list[Value]

    def holds(self, value: Value) -> bool:
        """Return whether a value of the attribute passes the test."""
        return condition_on("key", self.operator, self.values)({"key": value})


def tests_of(text: str, names: Names | None, values: Values | None) -> dict[str, KeyTest]:
    """Parse a KeyConditionExpression. Return the test of each key attribute, by attribute name."""
    plan = _plan(text, None if names is None else (*names.items(),))
    given = values or {}
    return {
        name: KeyTest(operator, [given[one] for one in wanted]) for name, operator, wanted in plan
    }


@lru_cache(PLANS_KEPT)
def _plan(
    text: str, names: tuple[tuple[str, str], ...] | None
) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Parse a KeyConditionExpression without the values of its placeholders.

    Returns (attribute, operator, placeholders) of each test: `p = :p` gives `("p", "EQ", (":p",))`.
    """
    scope = Scope(dict(names or ()))
    plan: dict[str, tuple[str, str, tuple[str, ...]]] = {}
    for condition in _conjuncts(parse_condition(text, KEYS).root):
        name, operator, placeholders = _test(condition, scope)
        if name in plan:
            raise ValidationFailed(
                "KeyConditionExpressions must only contain one condition per key"
            )
        plan[name] = (name, operator, placeholders)
    return tuple(_counted(plan).values())


def legacy_tests(conditions: Mapping[str, LegacyCondition]) -> dict[str, KeyTest]:
    """Translate the legacy parameter KeyConditions. Return the test of each attribute, by name."""
    tests = {}
    for name, one in conditions.items():
        given = one.attribute_value_list or []
        check_condition(one.comparison_operator, given)
        tests[name] = KeyTest(one.comparison_operator, given)
    return _counted(tests)


def _counted(tests: dict[str, T]) -> dict[str, T]:
    if not 1 <= len(tests) <= TESTS_MAX:
        raise ValidationFailed(TOO_MANY)
    return tests


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, Both):
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
        return
    if operator := _forbidden(condition):
        raise ValidationFailed(f"Invalid operator used in KeyConditionExpression: {operator}")
    yield condition


def _forbidden(condition: Condition) -> str | None:
    names: dict[type, str] = {
        Either: "OR",
        Negation: "NOT",
        OneOf: "IN",
        HasType: "attribute_type",
        Contains: "contains",
    }
    if isinstance(condition, Exists):
        return "attribute_exists" if condition.wanted else "attribute_not_exists"
    if isinstance(condition, Compare) and condition.sign == "<>":
        return "<>"
    return names.get(type(condition))


def _test(condition: Condition, scope: Scope) -> tuple[str, str, tuple[str, ...]]:
    operator, operands = _operands(condition)
    if operator in ("BETWEEN", "begins_with") and isinstance(operands[0], Placeholder):
        raise ValidationFailed(
            f"{WRONG_CONDITION}{operator} operator must have the key attribute as its first operand"
        )
    placeholders: list[str] = []
    name: str | None = None
    for operand in operands:
        if isinstance(operand, Placeholder):
            placeholders.append(operand.name)
        elif not isinstance(operand, Path):
            raise ValidationFailed("KeyConditionExpressions cannot contain nested operations")
        elif name is not None:
            raise ValidationFailed(
                f"{WRONG_CONDITION}Multiple attribute names used in one condition"
            )
        elif len(operand.parts) > 1:
            raise ValidationFailed(
                "KeyConditionExpressions cannot have conditions on nested attributes"
            )
        else:
            name = str(operand.resolved(scope)[0])
    if name is None:
        raise ValidationFailed(f"{WRONG_CONDITION}No key attribute specified")
    if isinstance(condition, Compare):
        is_first = isinstance(condition.left, Path)
        operator = OPERATORS[operator if is_first else MIRRORED[operator]]
    operator = "BEGINS_WITH" if operator == "begins_with" else operator
    return name, operator, tuple(placeholders)


def _operands(condition: Condition) -> tuple[str, list[object]]:
    if isinstance(condition, Compare):
        return condition.sign, [condition.left, condition.right]
    if isinstance(condition, Between):
        return "BETWEEN", [condition.subject, condition.low, condition.high]
    if isinstance(condition, BeginsWith):
        return "begins_with", [condition.subject, condition.prefix]
    raise ValidationFailed(NOT_SUPPORTED)


def key_range(
    tests: dict[str, KeyTest], schema: KeySchema, start: Item | None = None
) -> tuple[Part, Bounds]:
    """Return the partition key and the range of sort keys that a query reads.

    `tests` are the query's tests by attribute, and `schema` is the key of the table or index.
    `start` is the ExclusiveStartKey: the query continues after it. To report the same mistake as
    DynamoDB, the function goes through the key's attributes in order. For each it checks the value
    in `start` first, then the test.
    """
    hash_parts, sort_parts = schema.hash_parts, schema.sort_parts
    if len(tests) > max(len(hash_parts) + len(sort_parts), 2):
        raise ValidationFailed(TOO_MANY)
    hashes = []
    for part in hash_parts:
        check_start(start, schema, part)
        if not sort_parts and len(tests) > len(hash_parts):
            _refuse()
        test = tests.get(part.name)
        if test is None:
            raise _missed(part)
        hashes.append(_key_values(test, schema, part)[0])
        if test.operator != "EQ":
            _refuse()
    hash_: Part = hashes[0] if len(hashes) == 1 else tuple(hashes)
    return hash_, _range_of(tests, len(tests) - len(hashes), schema, start)


def check_start(start: Item | None, schema: KeySchema, part: KeyPart) -> None:
    """Raise if the ExclusiveStartKey `start` lacks a key attribute, or has a wrong value for it."""
    if start is not None:
        if part.name not in start:
            raise ValidationFailed(STARTING_KEY)
        schema.part(start[part.name], part)


def _range_of(
    tests: dict[str, KeyTest], count: int, schema: KeySchema, start: Item | None
) -> Bounds:
    """Return the range of sort keys that `tests` select; `count` of these tests are of sort keys.

    The sort key of an index may have several attributes. Then no attribute may be skipped, and only
    the last test may be something else than an equality.
    """
    equal: list[Native] = []
    bounds = EVERYTHING
    for number, part in enumerate(schema.sort_parts, 1):
        check_start(start, schema, part)
        if number > count:
            continue
        test = tests.get(part.name)
        if test is None:
            raise _missed(part)
        values = _key_values(test, schema, part)
        if number == count:
            bounds = _bounds(test.operator, values)
        elif test.operator == "EQ":
            equal.append(values[0])
        else:
            _refuse()
    return bounds if isinstance(schema, Schema) else _of_index(tuple(equal), bounds)


def _of_index(equal: tuple[Native, ...], bounds: Bounds) -> Bounds:
    """Return the bounds of the last tested attribute as bounds of an index's whole sort keys.

    These are tuples. They begin with `equal`, the values of the attributes before it.
    """

    def whole(one: Any) -> tuple[Native, ...] | None:
        return (*equal, one) if one is not None else equal or None

    if bounds.prefix is not None:
        return Bounds(prefix=whole(bounds.prefix))
    return Bounds(
        whole(bounds.low),
        bounds.low_included or bounds.low is None,
        whole(bounds.high),
        bounds.high_included or bounds.high is None,
    )


def _refuse() -> NoReturn:
    raise ValidationFailed(NOT_SUPPORTED)


def _missed(part: KeyPart) -> ValidationFailed:
    return ValidationFailed(f"Query condition missed key schema element: {part.name}")


def _key_values(test: KeyTest, schema: KeySchema, part: KeyPart) -> list[Native]:
    if test.operator in ("NULL", "NOT_NULL", "NE", "CONTAINS", "NOT_CONTAINS", "IN"):
        raise ValidationFailed("Attempted conditional constraint is not an indexable operation")
    if any(kind_of(value) != part.kind for value in test.values):
        raise ValidationFailed(
            "One or more parameter values were invalid: "
            "Condition parameter type does not match schema type"
        )
    return [schema.part(value, part) for value in test.values]


def _bounds(operator: str, values: list[Native]) -> Bounds:
    first = values[0]
    if operator == "EQ":
        return Bounds(low=first, high=first)
    if operator == "BETWEEN":
        return Bounds(low=first, high=values[1])
    if operator == "BEGINS_WITH":
        if not isinstance(first, str | bytes):
            _refuse()
        return Bounds(prefix=first)
    if operator in ("LT", "LE"):
        return Bounds(high=first, high_included=operator == "LE")
    return Bounds(low=first, low_included=operator == "GE")
