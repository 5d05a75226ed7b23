"""The expressions of one request, read together: parsed, checked and ready to evaluate.

All of this is pure and needs no table. `legacy.py` does the same for the legacy parameters.

    given = read_expressions({"#n": "count"}, {":one": {"N": "1"}}, {UPDATE: "ADD #n :one"})
    given.update.apply({"pk": {"S": "a"}}, given.scope)  # {"pk": {"S": "a"}, "count": {"N": "1"}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.requests import Names, Values
from heatsink.stores.dynamodb.wire.values import Item, admit

from .conditions import Condition
from .operands import NO_SCOPE, Path, Scope, Size, resolved
from .parser import Parsed, parse_condition, parse_projection, parse_update
from .updates import Parts, Update, check_paths, project

NAMES, VALUES = "ExpressionAttributeNames", "ExpressionAttributeValues"
UPDATE, CONDITION, FILTER = "UpdateExpression", "ConditionExpression", "FilterExpression"
KEYS, PROJECTION = "KeyConditionExpression", "ProjectionExpression"
INVALID = "One or more parameter values were invalid: "
NAME_BYTES_MAX = 65_535
STRUCTURES_KEPT = 2_048
_PLACEHOLDER = {NAMES: re.compile(r"#[0-9a-zA-Z_]+"), VALUES: re.compile(r":[0-9a-zA-Z_]+")}


class Projection(msgspec.Struct, frozen=True):
    """Selects the part of each item that goes into the answer.

    If `paths` is None, the whole item does.

    `nested` are the top-level attributes into which the paths reach.
    """

    paths: tuple[Parts, ...] | None = None
    nested: frozenset[str] = frozenset()

    def names(self) -> set[str]:
        """Return the top-level attributes that the projection selects.

        Returns an empty set if it selects the whole item.
        """
        return {str(path[0]) for path in self.paths or ()}

    def of(self, item: Item) -> Item:
        return item if self.paths is None else project(item, self.paths)


WHOLE_ITEM = Projection()


class Expressions(msgspec.Struct, frozen=True):
    """The parsed expressions of one request. They are valid, apart from the table's keys and items.

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
    """Raise if a request defines placeholders but has no expression that can use them.

    `expressions` are the texts by field, such as FilterExpression.
    """
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

    Results that depend only on texts and names are cached. If anything is wrong, the request is
    read once more without the cache, since DynamoDB reports mistakes in its own order.
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
    """The expressions of a request as far as they are known without the values of placeholders.

    Attribute names replace their placeholders. `values` are the placeholders of values that the
    expressions use.
    """

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
    """Parse the expressions of a request, and check what does not depend on values.

    `fields` are the names of the expressions, and `texts` the expressions themselves. Raises if
    anything is wrong.
    """
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
    """Return the projection of a read that has no other expression.

    `attributes` is the legacy parameter AttributesToGet. Also raises if one of the `keys` to read
    has a malformed value.
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


def check_filter(given: Expressions, keys: Iterable[str], field: str) -> None:
    """Raise `ValidationFailed` if the filter of a query uses a key attribute.

    Conditions on key attributes belong in the KeyConditionExpression.
    """
    for name in mentioned(given.condition, given.scope):
        if name in keys:
            raise ValidationFailed(
                f"{field} can only contain non-primary key attributes: "
                f"Primary key attribute: {name}"
            )


def mentioned(condition: object, scope: Scope) -> Iterator[str]:
    """Yield the top-level attributes that a condition, an operand or an update uses."""
    if isinstance(condition, Path):
        yield str(condition.resolved(scope)[0])
    elif isinstance(condition, Size):
        yield from mentioned(condition.of, scope)
    elif isinstance(condition, tuple):
        for part in condition:
            yield from mentioned(part, scope)
    elif hasattr(condition, "__struct_fields__"):
        for field in condition.__struct_fields__:
            yield from mentioned(getattr(condition, field), scope)
