"""The expressions of a request and their legacy counterparts, checked before its table is known.

A legacy parameter becomes the same condition, update or projection as an expression would. Its
values get placeholders that no expression can contain. So one evaluator serves both. DynamoDB does
not let a request mix the two kinds, except KeyConditions with other expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from heatsink.emulator.requests import (
    AttributeValueUpdate,
    ExpectedAttributeValue,
    Names,
    Operator,
    Values,
)
from heatsink.emulator.requests import Condition as LegacyCondition
from heatsink.emulator.table import EngineTable
from heatsink.stores.dynamodb.wire.errors import DoesNotFit, ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.conditions import (
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
from heatsink.stores.dynamodb.wire.expressions.operands import (
    NO_SCOPE,
    IfNotExists,
    ListAppend,
    Path,
    Placeholder,
    Scope,
    resolved,
)
from heatsink.stores.dynamodb.wire.expressions.parser import (
    Parsed,
    parse_condition,
    parse_projection,
    parse_update,
)
from heatsink.stores.dynamodb.wire.expressions.updates import (
    BAD_TYPE,
    Parts,
    Update,
    check_paths,
    project,
)
from heatsink.stores.dynamodb.wire.values import SETS, Item, Value, admit, kind_of

NAMES, VALUES = "ExpressionAttributeNames", "ExpressionAttributeValues"
UPDATE, CONDITION, FILTER = "UpdateExpression", "ConditionExpression", "FilterExpression"
KEYS, PROJECTION = "KeyConditionExpression", "ProjectionExpression"
INVALID = "One or more parameter values were invalid: "
NAME_BYTES_MAX = 65_535
STRUCTURES_KEPT = 2_048
_PLACEHOLDER = {NAMES: re.compile(r"#[0-9a-zA-Z_]+"), VALUES: re.compile(r":[0-9a-zA-Z_]+")}
SIGNS = {"EQ": "=", "NE": "<>", "LE": "<=", "LT": "<", "GE": ">=", "GT": ">"}
NUMBER_OF_VALUES = {**dict.fromkeys(("NULL", "NOT_NULL"), 0), "BETWEEN": 2}
ORDERED = ("S", "N", "B")
TYPES_OF_VALUES = {
    **dict.fromkeys(("LE", "LT", "GE", "GT", "CONTAINS", "NOT_CONTAINS", "IN", "BETWEEN"), ORDERED),
    "BEGINS_WITH": ("S", "B"),
}
ADDABLE = ("L", "N", *SETS)


class Projection(msgspec.Struct, frozen=True):
    """Selects the part of each item that goes into the answer. None: the whole item.

    `nested` are the attributes into which the paths reach.
    """

    paths: tuple[Parts, ...] | None = None
    nested: frozenset[str] = frozenset()

    def names(self) -> set[str]:
        """Return the top-level attributes that the projection selects. Empty without one."""
        return {str(path[0]) for path in self.paths or ()}

    def of(self, item: Item) -> Item:
        return item if self.paths is None else project(item, self.paths)


WHOLE_ITEM = Projection()


class Expressions(msgspec.Struct, frozen=True):
    """The expressions of one request, valid by themselves.

    `condition` is the condition of a write or the filter of a page. `keys` is the parsed
    KeyConditionExpression. `nested` are the attributes into which any expression reaches.
    """

    scope: Scope = NO_SCOPE
    condition: Condition | None = None
    update: Update | None = None
    keys: Condition | None = None
    projection: Projection = WHOLE_ITEM
    nested: frozenset[str] = frozenset()


NONE_GIVEN = Expressions()


def check_mixed(legacy: Mapping[str, object], expressions: Mapping[str, str | None]) -> None:
    """Raise if a request has legacy parameters beside expressions."""
    old = [name for name, value in legacy.items() if value is not None]
    new = [name for name, text in expressions.items() if text is not None]
    if old and new:
        raise ValidationFailed(
            "Can not use both expression and non-expression parameters in the same request: "
            f"Non-expression parameters: {{{', '.join(old)}}} "
            f"Expression parameters: {{{', '.join(new)}}}"
        )


def check_used(
    names: Names | None, values: Values | None, expressions: Mapping[str, str | None]
) -> None:
    """Raise if a request has names or values of placeholders, but no expression for them."""
    if names is None and values is None:
        return
    given = {field for field, text in expressions.items() if text is not None}
    if names is not None and not given:
        raise ValidationFailed(f"{NAMES} can only be specified when using expressions")
    able = [field for field in expressions if field != PROJECTION]
    if values is not None and not given.intersection(able):
        verb = "are" if len(able) > 1 else "is"
        missing = f": {' and '.join(able)} {verb} null" if able else ""
        raise ValidationFailed(f"{VALUES} can only be specified when using expressions{missing}")


def read_expressions(
    names: Names | None, values: Values | None, expressions: Mapping[str, str | None]
) -> Expressions:
    """Parse and check the expressions of a request, in the order of `expressions`.

    What depends only on texts and names is cached. If anything is wrong, the request is read once
    more without the cache, since DynamoDB reports mistakes in an order of its own.
    """
    texts = tuple(expressions.values())
    if names is None and values is None and texts.count(None) == len(texts):
        return NONE_GIVEN
    given = values or {}
    try:
        known = _structure(tuple(expressions), texts, None if names is None else (*names.items(),))
        if given.keys() != known.values or (values is not None and not values):
            raise ValidationFailed("a value is missing, or not used")
        for value in given.values():
            admit(value)
        scope = Scope(NO_SCOPE.names, given)
        known.check(scope)
    except ValidationFailed:
        _check_slowly(names, values, expressions)
        raise
    return msgspec.structs.replace(known.expressions, scope=scope)


def _check_slowly(
    names: Names | None, values: Values | None, expressions: Mapping[str, str | None]
) -> None:
    """Raise the mistake that DynamoDB would report."""
    _check_placeholders(names, values)
    scope = Scope(names or {}, values or {})
    found: dict[str, Parsed[Any]] = {}
    for field, text in expressions.items():
        if text is not None:
            parsed = found[field] = PARSERS[field](text)
            _check_defined(scope, parsed)
            _check_names(parsed, scope)
            _check_meaning(field, parsed, scope)
    _check_all_used(scope, found.values())
    if PROJECTION in found:
        _projection(found[PROJECTION], scope)


class _Structure(msgspec.Struct, frozen=True):
    """What is known of a request's expressions without its values. Aliases are resolved."""

    expressions: Expressions
    values: frozenset[str]

    def check(self, scope: Scope) -> None:
        """Raise if a value has a type that its operator never accepts."""
        given = self.expressions
        if given.update is not None:
            given.update.check_types(scope)
        if given.condition is not None:
            given.condition.check(scope, CONDITION)
        if given.keys is not None:
            given.keys.check(scope, KEYS)


@lru_cache(STRUCTURES_KEPT)
def _structure(
    fields: tuple[str, ...],
    texts: tuple[str | None, ...],
    names: tuple[tuple[str, str], ...] | None,
) -> _Structure:
    """Parse expressions and check what does not depend on values. Raises if anything is wrong."""
    aliases = dict(names or ())
    scope = Scope(aliases)
    found = {
        field: PARSERS[field](text)
        for field, text in zip(fields, texts, strict=True)
        if text is not None
    }
    used = frozenset().union(*(parsed.names for parsed in found.values()))
    if used != aliases.keys() or (names is not None and not names):
        raise ValidationFailed("a name is missing, or not used")
    for parsed in found.values():
        _check_names(parsed, scope)
        if parsed.late is not None:
            raise ValidationFailed(parsed.late)
    roots = {field: resolved(parsed.root, scope) for field, parsed in found.items()}
    if UPDATE in roots:
        roots[UPDATE].check_paths()
    projection = _projection(found[PROJECTION], scope) if PROJECTION in found else WHOLE_ITEM
    return _Structure(
        Expressions(
            NO_SCOPE,
            roots.get(CONDITION) or roots.get(FILTER),
            roots.get(UPDATE),
            roots.get(KEYS),
            projection,
            frozenset().union(*(_nested(parsed, scope) for parsed in found.values())),
        ),
        frozenset().union(*(parsed.values for parsed in found.values())),
    )


def _nested(parsed: Parsed[Any], scope: Scope) -> frozenset[str]:
    return frozenset(str(path.resolved(scope)[0]) for path in parsed.nested)


def check_scalars(nested: frozenset[str], table: EngineTable) -> None:
    """Raise if an expression reaches into a key attribute, which is never a map or a list."""
    keys = [("Key", name) for name in table.schema.names]
    keys += [("IndexKey", name) for one in table.indexes.values() for name in one.schema.names]
    for kind, name in keys:
        if name in nested:
            raise ValidationFailed(
                "Key attributes must be scalars; list random access '[]' and map lookup '.' are "
                f"not allowed: {kind}: {name}"
            )


PARSERS: dict[str, Callable[[str], Parsed[Any]]] = {
    UPDATE: parse_update,
    CONDITION: lambda text: parse_condition(text, CONDITION),
    KEYS: lambda text: parse_condition(text, KEYS),
    FILTER: lambda text: parse_condition(text, FILTER),
    PROJECTION: parse_projection,
}


def _check_meaning(field: str, parsed: Parsed[Any], scope: Scope) -> None:
    if field == UPDATE:
        parsed.root.check(scope, parsed.late)
        return
    if parsed.late is not None:
        raise ValidationFailed(f"Invalid {field}: {parsed.late}")
    if field != PROJECTION:
        parsed.root.check(scope, field)


def _projection(parsed: Parsed[Any], scope: Scope) -> Projection:
    paths = [path.resolved(scope) for path in parsed.root]
    check_paths(paths, PROJECTION)
    return Projection(tuple(paths), _nested(parsed, scope))


def _check_placeholders(names: Names | None, values: Values | None) -> None:
    for field, given in ((NAMES, names), (VALUES, values)):
        if given is None:
            continue
        if not given:
            raise ValidationFailed(f"{field} must not be empty")
        for name in given:
            if not _PLACEHOLDER[field].fullmatch(name):
                raise ValidationFailed(f'{field} contains invalid key: Syntax error; key: "{name}"')
    for name, value in (values or {}).items():
        try:
            admit(value)
        except ValidationFailed as error:
            raise ValidationFailed(
                f"{VALUES} contains invalid value: {error.message} for key {name}"
            ) from None


def _check_defined(scope: Scope, parsed: Parsed[Any]) -> None:
    for name in (one for one in parsed.names if one not in scope.names):
        raise ValidationFailed(
            f"Invalid {parsed.field}: An expression attribute name used in the document path is "
            f"not defined; attribute name: {name}"
        )
    for name in (one for one in parsed.values if one not in scope.values):
        raise ValidationFailed(
            f"Invalid {parsed.field}: An expression attribute value used in expression is not "
            f"defined; attribute value: {name}"
        )


def _check_names(parsed: Parsed[Any], scope: Scope) -> None:
    for alias in parsed.names:
        name = scope.names[alias]
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise ValidationFailed(
                f"{NAMES} contains invalid value: Attribute name must be between 1 and "
                f"{NAME_BYTES_MAX} bytes long for key {alias}"
            )


def _check_all_used(scope: Scope, parsed: Iterable[Parsed[Any]]) -> None:
    known = list(parsed)
    for field, given, used in (
        (NAMES, scope.names, {name for one in known for name in one.names}),
        (VALUES, scope.values, {name for one in known for name in one.values}),
    ):
        unused = [name for name in given if name not in used]
        if unused:
            raise ValidationFailed(
                f"Value provided in {field} unused in expressions: keys: {{{', '.join(unused)}}}"
            )


def projection_of(
    expression: str | None,
    names: Names | None,
    attributes: list[str] | None = None,
    keys: Iterable[Item] = (),
) -> Projection:
    """Return the projection of a read that has no other expression, and check its keys.

    `attributes` is the legacy parameter AttributesToGet.
    """
    expressions = {PROJECTION: expression}
    if names is not None or attributes is not None:
        check_mixed({"AttributesToGet": attributes}, expressions)
        check_used(names, None, expressions)
    for key in keys:
        for value in key.values():
            admit(value)
    if attributes is not None:
        return legacy_projection(attributes)
    return read_expressions(names, None, expressions).projection


def legacy_projection(attributes: list[str]) -> Projection:
    for number, name in enumerate(attributes):
        if name in attributes[:number]:
            raise ValidationFailed(f"{INVALID}Duplicate value in attribute name: {name}")
    return Projection(tuple((name,) for name in attributes))


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
    """Raise if the operator of a legacy condition does not take these values."""
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
    """Return a legacy condition as a function that says whether it holds for an item."""
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
    """Return the operator of a condition that has none: with a value EQ, without one NULL."""
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
    """Translate the parameter AttributeUpdates. Returns the update and its values."""
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
    """Return the error of an update in the words for AttributeUpdates."""
    if error.message != BAD_TYPE:
        return error
    return DoesNotFit("Type mismatch for attribute to update")
