"""Legacy parameters, which become the same conditions, updates and projections as expressions.

Their values get placeholders that no expression can contain. So one evaluator serves both kinds.
DynamoDB does not allow a request with both kinds, except KeyConditions with other expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from heatsink.stores.dynamodb.wire.errors import DoesNotFit, ValidationFailed
from heatsink.stores.dynamodb.wire.requests import (
    AttributeValueUpdate,
    ExpectedAttributeValue,
    Operator,
    Values,
)
from heatsink.stores.dynamodb.wire.requests import Condition as LegacyCondition
from heatsink.stores.dynamodb.wire.values import SETS, Item, Value, admit, kind_of

from .conditions import (
    BeginsWith,
    Between,
    Both,
    Compare,
    Condition,
    Contains,
    Either,
    Exists,
    Negation,
    OneOf,
    are_ordered,
)
from .operands import IfNotExists, ListAppend, Path, Placeholder, Scope
from .reading import INVALID, NONE_GIVEN, Expressions
from .updates import BAD_TYPE, Update

SIGNS = {"EQ": "=", "NE": "<>", "LE": "<=", "LT": "<", "GE": ">=", "GT": ">"}
NUMBER_OF_VALUES = {**dict.fromkeys(("NULL", "NOT_NULL"), 0), "BETWEEN": 2}
ORDERED = ("S", "N", "B")
TYPES_OF_VALUES = {
    **dict.fromkeys(("LE", "LT", "GE", "GT", "CONTAINS", "NOT_CONTAINS", "IN", "BETWEEN"), ORDERED),
    "BEGINS_WITH": ("S", "B"),
}
ADDABLE = ("L", "N", *SETS)


class _LegacyValues:
    """Gives the values of one legacy parameter placeholders."""

    def __init__(self, parameter: str) -> None:
        self._parameter = parameter
        self.values: dict[str, Value] = {}

    def placeholder(self, value: Value) -> Placeholder:
        name = f": {self._parameter} {len(self.values)}"
        self.values[name] = value
        return Placeholder(name)


def _combined(
    conditions: list[Condition], operator: Operator | None, values: _LegacyValues
) -> Expressions:
    """Join the conditions of a legacy parameter into one."""
    if not conditions:
        if operator is not None:
            raise ValidationFailed("ConditionalOperator cannot be used without Filter or Expected")
        return NONE_GIVEN
    if operator is not None and len(conditions) == 1:
        raise ValidationFailed(
            "ConditionalOperator can only be used when Filter or Expected has two or more elements"
        )
    joined, pair = conditions[0], Either if operator == "OR" else Both
    for one in conditions[1:]:
        joined = pair(joined, one)
    return Expressions(Scope({}, values.values), joined)


def legacy_filter(
    conditions: Mapping[str, LegacyCondition] | None, operator: Operator | None
) -> Expressions:
    """Translate a QueryFilter or ScanFilter."""
    values = _LegacyValues("filter")
    found = []
    for name, one in (conditions or {}).items():
        check_condition(one.comparison_operator, one.attribute_value_list or [])
        given = one.attribute_value_list or []
        found.append(_condition(name, one.comparison_operator, given, values))
    return _combined(found, operator, values)


def check_condition(operator: str, given: list[Value], typed: bool = True) -> None:
    """Raise if the operator of a legacy condition does not take the values `given`.

    Without `typed`, only the number of values is checked, not their types.
    """
    for value in given:
        admit(value)
    wanted = NUMBER_OF_VALUES.get(operator, 1)
    if len(given) != wanted and not (operator == "IN" and given):
        raise ValidationFailed(
            f"{INVALID}Invalid number of argument(s) for the {operator} ComparisonOperator"
        )
    if len({kind_of(value) for value in given}) > 1:
        raise ValidationFailed(
            f"{INVALID}AttributeValues inside AttributeValueList must be of same type"
        )
    allowed = TYPES_OF_VALUES.get(operator)
    for value in given if allowed and typed else ():
        if kind_of(value) not in (allowed or ()):
            raise ValidationFailed(
                f"{INVALID}ComparisonOperator {operator} is not valid for {kind_of(value)} "
                "AttributeValue type"
            )
    if operator == "BETWEEN" and are_ordered(">", *given):
        raise ValidationFailed(
            "The BETWEEN condition was provided a range where the lower bound is greater than "
            "the upper bound"
        )


def _condition(name: str, operator: str, given: list[Value], values: _LegacyValues) -> Condition:
    path = Path((name,))
    operands = [values.placeholder(value) for value in given]
    if operator in SIGNS:
        return Compare(SIGNS[operator], path, operands[0])
    if operator in ("NULL", "NOT_NULL"):
        return Exists(path, operator == "NOT_NULL")
    if operator == "BETWEEN":
        return Between(path, *operands)
    if operator == "IN":
        return OneOf(path, tuple(operands))
    if operator == "BEGINS_WITH":
        return BeginsWith(path, operands[0])
    contains = Contains(path, operands[0])
    return contains if operator == "CONTAINS" else Negation(contains)


def condition_on(name: str, operator: str, given: list[Value]) -> Callable[[Item], bool]:
    """Return a function that says whether a legacy condition holds for an item.

    The condition compares the attribute `name` with the values `given`.
    """
    values = _LegacyValues("condition")
    condition = _condition(name, operator, given, values)
    return lambda item: condition.holds(item, Scope({}, values.values))


def legacy_condition(
    expected: Mapping[str, ExpectedAttributeValue] | None, operator: Operator | None
) -> Expressions:
    """Translate the parameter Expected."""
    values = _LegacyValues("expected")
    found = []
    for name, one in (expected or {}).items():
        if one.attribute_value_list is not None and one.value is not None:
            raise _expected_error("Value and AttributeValueList cannot be used together", name)
        given = [one.value] if one.value is not None else one.attribute_value_list or []
        comparison: str | None = one.comparison_operator
        if comparison is not None:
            _check_compared(name, one, given)
        elif one.attribute_value_list is not None:
            raise _expected_error(
                "AttributeValueList can only be used with a ComparisonOperator", name
            )
        else:
            comparison = _by_existence(name, one)
        found.append(_condition(name, comparison, given, values))
    return _combined(found, operator, values)


def _check_compared(name: str, one: ExpectedAttributeValue, given: list[Value]) -> None:
    comparison = one.comparison_operator or ""
    if one.exists is not None:
        raise _expected_error("Exists and ComparisonOperator cannot be used together", name)
    if comparison not in ("NULL", "NOT_NULL") and (
        one.attribute_value_list is None and one.value is None
    ):
        raise _expected_error(
            f"Value or AttributeValueList must be used with ComparisonOperator: {comparison}", name
        )
    check_condition(comparison, given)


def _by_existence(name: str, one: ExpectedAttributeValue) -> str:
    """Return the operator of a condition in `Expected` that names none.

    This is EQ if the condition has a value, and NULL if it has `Exists: false`.
    """
    if one.exists is False:
        if one.value is not None:
            raise _expected_error("Value cannot be used when Exists is false", name)
        return "NULL"
    if one.value is None:
        shown = "null" if one.exists is None else "true"
        raise _expected_error(f"Value must be provided when Exists is {shown}", name)
    admit(one.value)
    return "EQ"


def _expected_error(what: str, name: str) -> ValidationFailed:
    return ValidationFailed(f"{INVALID}{what} for Attribute: {name}")


def legacy_update(updates: Mapping[str, AttributeValueUpdate]) -> tuple[Update, Values]:
    """Translate the parameter AttributeUpdates. Returns the update and its placeholders' values."""
    values = _LegacyValues("updates")
    sets: list[tuple[Path, Any]] = []
    removes: list[Path] = []
    adds: list[tuple[Path, Placeholder]] = []
    deletes: list[tuple[Path, Placeholder]] = []
    for name, one in updates.items():
        path = Path((name,))
        _check_update(one)
        if one.value is None:
            removes.append(path)
            continue
        operand = values.placeholder(one.value)
        if one.action == "PUT":
            sets.append((path, operand))
        elif one.action == "DELETE":
            deletes.append((path, operand))
        elif "L" in one.value:
            nothing = values.placeholder({"L": []})
            sets.append((path, ListAppend(IfNotExists(path, nothing), operand)))
        else:
            adds.append((path, operand))
    return Update(tuple(sets), tuple(removes), tuple(adds), tuple(deletes)), values.values


def _check_update(one: AttributeValueUpdate) -> None:
    if one.value is None:
        if one.action != "DELETE":
            raise ValidationFailed(
                f"{INVALID}Only DELETE action is allowed when no attribute value is specified"
            )
        return
    admit(one.value)
    kind = kind_of(one.value)
    if one.action == "DELETE" and kind not in SETS:
        raise ValidationFailed(
            f"{INVALID}DELETE action with value is not supported for the type {kind}"
        )
    if one.action == "ADD" and kind not in ADDABLE:
        raise ValidationFailed(f"{INVALID}ADD action is not supported for the type {kind}")


def legacy_words(error: DoesNotFit) -> DoesNotFit:
    """Return an error of an update as DynamoDB words it for the parameter AttributeUpdates."""
    if error.message != BAD_TYPE:
        return error
    return DoesNotFit("Type mismatch for attribute to update")
