"""What a request's placeholders stand for, checked against the expressions that use them."""

from __future__ import annotations

from typing import Any

from heatsink.dynamo.errors import ValidationFailed
from heatsink.dynamo.expressions.operands import NO_SCOPE, Scope
from heatsink.dynamo.expressions.parser import Parsed, parse_projection
from heatsink.dynamo.expressions.projection import Parts, check_paths, project
from heatsink.dynamo.requests import Names, Values
from heatsink.dynamo.values import Item, admit

NAMES = "ExpressionAttributeNames"
VALUES = "ExpressionAttributeValues"


def scope_of(
    names: Names | None, values: Values | None, parsed: list[Parsed[Any]], missing: str
) -> Scope:
    """`missing` is the expression that a request would need to use values at all."""
    if names is None and values is None and not parsed:
        return NO_SCOPE
    if names is not None:
        _check_given(NAMES, names, parsed, "")
    if values is not None:
        _check_given(VALUES, values, parsed, f": {missing} is null" if missing else "")
        _admit_values(values)
    scope = Scope(names or {}, values or {})
    _check_defined(scope, parsed)
    _check_used(scope, parsed)
    return scope


def _check_given(field: str, given: Any, parsed: list[Parsed[Any]], missing: str) -> None:
    if not parsed:
        raise ValidationFailed(f"{field} can only be specified when using expressions{missing}")
    if not given:
        raise ValidationFailed(f"{field} must not be empty")


def _admit_values(values: Values) -> None:
    for name, value in values.items():
        try:
            admit(value)
        except ValidationFailed as error:
            raise ValidationFailed(
                f"{VALUES} contains invalid value: {error.message} for key {name}"
            ) from None


def _check_defined(scope: Scope, parsed: list[Parsed[Any]]) -> None:
    for one in parsed:
        for name in one.names - scope.names.keys():
            raise ValidationFailed(
                f"Invalid {one.field}: An expression attribute name used in the document path is "
                f"not defined; attribute name: {name}"
            )
        for name in one.values - scope.values.keys():
            raise ValidationFailed(
                f"Invalid {one.field}: An expression attribute value used in expression is not "
                f"defined; attribute value: {name}"
            )


def _check_used(scope: Scope, parsed: list[Parsed[Any]]) -> None:
    for field, given, used in (
        (NAMES, scope.names, {name for one in parsed for name in one.names}),
        (VALUES, scope.values, {name for one in parsed for name in one.values}),
    ):
        unused = [name for name in given if name not in used]
        if unused:
            raise ValidationFailed(
                f"Value provided in {field} unused in expressions: keys: {{{', '.join(unused)}}}"
            )


class Projection:
    """What of each item goes into the answer; without an expression, all of it."""

    def __init__(self, parsed: Parsed[Any] | None, scope: Scope) -> None:
        self._paths: list[Parts] | None = None
        if parsed is not None:
            self._paths = [path.resolved(scope) for path in parsed.root]
            check_paths(self._paths)

    def of(self, item: Item) -> Item:
        return item if self._paths is None else project(item, self._paths)


def projection_of(expression: str | None, names: Names | None) -> Projection:
    """For requests whose only expression is the projection."""
    parsed = None if expression is None else parse_projection(expression)
    scope = scope_of(names, None, [] if parsed is None else [parsed], "")
    return Projection(parsed, scope)
