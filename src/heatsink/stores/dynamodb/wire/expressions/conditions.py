"""Condition expressions. Each node can evaluate whether it holds for an item."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.values import KINDS, SETS, Item, Value, equal, kind_of, native

from .operands import Operand, Path, Placeholder, Scope, Size

ORDERED = frozenset("SNB")
SIZED = KINDS - {"N", "BOOL", "NULL"}
VALID_TYPES = "{B,NULL,SS,BOOL,L,BS,N,NS,S,M}"
ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(Protocol):
    def holds(self, item: Item, scope: Scope) -> bool: ...

    def check(self, scope: Scope, field: str) -> None:
        """Raise `ValidationFailed` if an operator never accepts the type of a placeholder's value.

        `field` names the expression in the message.
        """


class Compare(msgspec.Struct, frozen=True):
    """A comparison. A missing value is unequal to every value."""

    sign: str
    left: Operand
    right: Operand

    def holds(self, item: Item, scope: Scope) -> bool:
        left, right = self.left.value(item, scope), self.right.value(item, scope)
        if self.sign in ("=", "<>"):
            same = left is not None and right is not None and equal(left, right)
            return same == (self.sign == "=")
        return are_ordered(self.sign, left, right)

    def check(self, scope: Scope, field: str) -> None:
        kinds = ORDERED if self.sign in ORDERINGS else KINDS
        for operand in (self.left, self.right):
            _must_be(operand, kinds, self.sign, scope, field)


def are_ordered(sign: str, left: Value | None, right: Value | None) -> bool:
    if left is None or right is None or left.keys() != right.keys():
        return False
    return kind_of(left) in ORDERED and ORDERINGS[sign](native(left), native(right))


class Between(msgspec.Struct, frozen=True):
    subject: Operand
    low: Operand
    high: Operand

    def holds(self, item: Item, scope: Scope) -> bool:
        subject = self.subject.value(item, scope)
        return are_ordered("<=", self.low.value(item, scope), subject) and are_ordered(
            "<=", subject, self.high.value(item, scope)
        )

    def check(self, scope: Scope, field: str) -> None:
        for operand in (self.subject, self.low, self.high):
            _must_be(operand, ORDERED, "BETWEEN", scope, field)
        if isinstance(self.low, Placeholder) and isinstance(self.high, Placeholder):
            low, high = scope.values[self.low.name], scope.values[self.high.name]
            required = ""
            if low.keys() != high.keys():
                required = "same data type for lower and upper bounds"
            elif native(low) > native(high):  # type: ignore[operator]
                required = "upper bound to be greater than or equal to lower bound"
            if required:
                raise ValidationFailed(
                    f"Invalid {field}: The BETWEEN operator requires {required}; lower bound "
                    f"operand: {_shown(low)}, upper bound operand: {_shown(high)}"
                )


class OneOf(msgspec.Struct, frozen=True):
    """`subject IN (…)`."""

    subject: Operand
    options: tuple[Operand, ...]

    def holds(self, item: Item, scope: Scope) -> bool:
        subject = self.subject.value(item, scope)
        if subject is None:
            return False
        options = (option.value(item, scope) for option in self.options)
        return any(option is not None and equal(subject, option) for option in options)

    def check(self, scope: Scope, field: str) -> None:
        for operand in (self.subject, *self.options):
            check_size(operand, scope, field)


class Pair(msgspec.Struct, frozen=True):
    left: Condition
    right: Condition

    def check(self, scope: Scope, field: str) -> None:
        self.left.check(scope, field)
        self.right.check(scope, field)


class Both(Pair, frozen=True):
    def holds(self, item: Item, scope: Scope) -> bool:
        return self.left.holds(item, scope) and self.right.holds(item, scope)


class Either(Pair, frozen=True):
    def holds(self, item: Item, scope: Scope) -> bool:
        return self.left.holds(item, scope) or self.right.holds(item, scope)


class Negation(msgspec.Struct, frozen=True):
    of: Condition

    def holds(self, item: Item, scope: Scope) -> bool:
        return not self.of.holds(item, scope)

    def check(self, scope: Scope, field: str) -> None:
        self.of.check(scope, field)


class Exists(msgspec.Struct, frozen=True):
    """`attribute_exists` and, with `wanted=False`, `attribute_not_exists`."""

    path: Path
    wanted: bool

    def holds(self, item: Item, scope: Scope) -> bool:
        return (self.path.value(item, scope) is not None) == self.wanted

    def check(self, scope: Scope, field: str) -> None:
        pass


class HasType(msgspec.Struct, frozen=True):
    """`attribute_type(operand, :type)`."""

    of: Operand
    kind: Operand

    def holds(self, item: Item, scope: Scope) -> bool:
        found, wanted = self.of.value(item, scope), self.kind.value(item, scope)
        return found is not None and wanted is not None and kind_of(found) == wanted.get("S")

    def check(self, scope: Scope, field: str) -> None:
        _must_be(self.kind, frozenset("S"), "attribute_type", scope, field)
        wanted = self.kind.value({}, scope)
        if wanted is not None and wanted["S"] not in KINDS:
            raise ValidationFailed(
                f"Invalid {field}: Invalid attribute type name found; type: {wanted['S']}, "
                f"valid types: {VALID_TYPES}"
            )


class BeginsWith(msgspec.Struct, frozen=True):
    subject: Operand
    prefix: Operand

    def holds(self, item: Item, scope: Scope) -> bool:
        subject, prefix = self.subject.value(item, scope), self.prefix.value(item, scope)
        if subject is None or prefix is None or subject.keys() != prefix.keys():
            return False
        if "S" in subject:
            return bool(subject["S"].startswith(prefix["S"]))
        return "B" in subject and native(subject).startswith(native(prefix))  # type: ignore

    def check(self, scope: Scope, field: str) -> None:
        for operand in (self.subject, self.prefix):
            _must_be(operand, frozenset("SB"), "begins_with", scope, field)


class Contains(msgspec.Struct, frozen=True):
    """`contains(path, operand)`: a substring, a member of a set, or an element of a list."""

    subject: Operand
    part: Operand

    def holds(self, item: Item, scope: Scope) -> bool:
        subject, part = self.subject.value(item, scope), self.part.value(item, scope)
        if subject is None or part is None:
            return False
        [(kind, content)], [(part_kind, part_content)] = subject.items(), part.items()
        if kind == "L":
            return any(equal(element, part) for element in content)
        if kind == "B" and part_kind == "B":
            return native(part) in native(subject)  # type: ignore[operator]
        return SETS.get(kind, "S") == part_kind and kind in ("S", *SETS) and part_content in content

    def check(self, scope: Scope, field: str) -> None:
        for operand in (self.subject, self.part):
            check_size(operand, scope, field)


def _must_be(
    operand: Operand, kinds: frozenset[str], function: str, scope: Scope, field: str
) -> None:
    check_size(operand, scope, field)
    if isinstance(operand, Size):
        kind = "N"
    elif isinstance(operand, Placeholder):
        kind = kind_of(scope.values[operand.name])
    else:
        return
    if kind not in kinds:
        raise wrong_operand(function, kind, field)


def check_size(operand: Operand, scope: Scope, field: str) -> None:
    """Raise if the operand is the size of a value that has none."""
    if isinstance(operand, Size) and isinstance(operand.of, Placeholder):
        kind = kind_of(scope.values[operand.of.name])
        if kind not in SIZED:
            raise wrong_operand("size", kind, field)


def wrong_operand(function: str, kind: str, field: str) -> ValidationFailed:
    return ValidationFailed(
        f"Invalid {field}: Incorrect operand type for operator or function; "
        f"operator or function: {function}, operand type: {kind}"
    )


def _shown(value: Value) -> str:
    [(kind, content)] = value.items()
    return f"AttributeValue: {{{kind}:{content}}}"
