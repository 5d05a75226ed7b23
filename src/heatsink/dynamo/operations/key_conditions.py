"""KeyConditionExpression: one partition key, and a range of its sort keys."""

from __future__ import annotations

from collections.abc import Iterator

from heatsink.dynamo.errors import ValidationFailed
from heatsink.dynamo.expressions.conditions import (
    BeginsWith,
    Between,
    Both,
    Compare,
    Condition,
    Either,
    Exists,
    HasType,
    Negation,
    OneOf,
)
from heatsink.dynamo.expressions.operands import Path, Placeholder, Scope, Size
from heatsink.dynamo.rows.items import EVERYTHING, Bounds
from heatsink.dynamo.schema import KeyPart, Schema
from heatsink.dynamo.values import Native, Value, kind_of

NOT_SUPPORTED = "Query key condition not supported"
MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def key_range(root: Condition, schema: Schema, scope: Scope) -> tuple[Native, Bounds]:
    root.check(scope, "KeyConditionExpression")
    about: dict[str, Condition] = {}
    for condition in _conjuncts(root):
        name = _subject(condition, scope)
        if name in about:
            raise ValidationFailed(
                "Invalid KeyConditionExpression: KeyConditionExpressions must only contain one "
                "condition per key"
            )
        about[name] = condition
    hash_ = about.pop(schema.hash.name, None)
    if hash_ is None:
        raise ValidationFailed(f"Query condition missed key schema element: {schema.hash.name}")
    sort = about.pop(schema.sort.name, None) if schema.sort else None
    if about:
        raise ValidationFailed(
            NOT_SUPPORTED
            if schema.sort is None or sort is not None
            else f"Query condition missed key schema element: {schema.sort.name}"
        )
    bounds = EVERYTHING
    if sort is not None and schema.sort is not None:
        bounds = _bounds(sort, schema, schema.sort, scope)
    return _equal_to(hash_, schema, scope), bounds


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, Both):
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    elif isinstance(condition, Either | Negation | OneOf | Exists | HasType):
        raise ValidationFailed(
            f"Invalid operator used in KeyConditionExpression: {_operator(condition)}"
        )
    else:
        yield condition


def _operator(condition: Condition) -> str:
    names: dict[type, str] = {Either: "OR", Negation: "NOT", OneOf: "IN", HasType: "attribute_type"}
    if isinstance(condition, Exists):
        return "attribute_exists" if condition.wanted else "attribute_not_exists"
    return names[type(condition)]


def _subject(condition: Condition, scope: Scope) -> str:
    paths = [part for part in _operands(condition) if isinstance(part, Path)]
    if len(paths) != 1 or len(paths[0].parts) != 1:
        raise ValidationFailed(NOT_SUPPORTED)
    return str(paths[0].resolved(scope)[0])


def _operands(condition: Condition) -> list[object]:
    if isinstance(condition, Compare):
        return [condition.left, condition.right]
    if isinstance(condition, Between):
        return [condition.subject, condition.low, condition.high]
    if isinstance(condition, BeginsWith):
        return [condition.subject, condition.prefix]
    raise ValidationFailed(NOT_SUPPORTED)


def _equal_to(condition: Condition, schema: Schema, scope: Scope) -> Native:
    if not isinstance(condition, Compare) or condition.sign != "=":
        raise ValidationFailed(NOT_SUPPORTED)
    _, value = _as_path_first(condition, scope)
    return _key_value(value, schema, schema.hash)


def _as_path_first(condition: Compare, scope: Scope) -> tuple[str, Value]:
    left, right = condition.left, condition.right
    if isinstance(left, Path) and isinstance(right, Placeholder):
        return condition.sign, scope.values[right.name]
    if isinstance(right, Path) and isinstance(left, Placeholder) and condition.sign in MIRRORED:
        return MIRRORED[condition.sign], scope.values[left.name]
    raise ValidationFailed(NOT_SUPPORTED)


def _key_value(value: Value, schema: Schema, part: KeyPart) -> Native:
    if kind_of(value) != part.kind:
        raise ValidationFailed(
            "One or more parameter values were invalid: "
            "Condition parameter type does not match schema type"
        )
    return schema.part(value, part)


def _bounds(condition: Condition, schema: Schema, part: KeyPart, scope: Scope) -> Bounds:
    if isinstance(condition, Compare):
        sign, value = _as_path_first(condition, scope)
        return _compared(sign, _key_value(value, schema, part))
    operands = [operand for operand in _operands(condition) if isinstance(operand, Placeholder)]
    values = [_key_value(scope.values[operand.name], schema, part) for operand in operands]
    if not isinstance(_operands(condition)[0], Path):
        raise ValidationFailed(NOT_SUPPORTED)
    if isinstance(condition, Between) and len(values) == 2:
        return Bounds(low=values[0], high=values[1])
    if isinstance(condition, BeginsWith) and isinstance(values[0], str | bytes):
        return Bounds(prefix=values[0])
    raise ValidationFailed(NOT_SUPPORTED)


def _compared(sign: str, value: Native) -> Bounds:
    if sign == "=":
        return Bounds(low=value, high=value)
    if sign in ("<", "<="):
        return Bounds(high=value, high_included=sign == "<=")
    if sign in (">", ">="):
        return Bounds(low=value, low_included=sign == ">=")
    raise ValidationFailed("Unsupported operator on KeyCondition: operator: <>")


def check_filter(condition: Condition, schema: Schema, scope: Scope) -> None:
    """A query's filter may not speak of keys: they belong into the key condition."""
    for name in _mentioned(condition, scope):
        if name in schema.names:
            raise ValidationFailed(
                f"Filter Expression can only contain non-primary key attributes: "
                f"Primary key attribute: {name}"
            )


def _mentioned(condition: object, scope: Scope) -> Iterator[str]:
    if isinstance(condition, Path):
        yield str(condition.resolved(scope)[0])
    elif isinstance(condition, Size):
        yield from _mentioned(condition.of, scope)
    elif isinstance(condition, tuple):
        for part in condition:
            yield from _mentioned(part, scope)
    elif hasattr(condition, "__struct_fields__"):
        for field in condition.__struct_fields__:
            yield from _mentioned(getattr(condition, field), scope)
