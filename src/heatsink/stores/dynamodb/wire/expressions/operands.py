"""Operands of expressions: paths into an item, placeholders, sizes and sums."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from heatsink.stores.dynamodb.wire.errors import DoesNotFit
from heatsink.stores.dynamodb.wire.values import SETS, Item, Value, add_numbers, kind_of

TYPE_NAMES = {
    "S": "STRING",
    "N": "NUMBER",
    "B": "BINARY",
    "BOOL": "BOOLEAN",
    "NULL": "NULL",
    "L": "LIST",
    "M": "MAP",
    "SS": "STRING_SET",
    "NS": "NUMBER_SET",
    "BS": "BINARY_SET",
}


class Scope(msgspec.Struct, frozen=True):
    """What a request's placeholders stand for: attribute names (`#n`) and values (`:v`)."""

    names: Mapping[str, str] = {}
    values: Mapping[str, Value] = {}


NO_SCOPE = Scope()


class Operand(Protocol):
    def value(self, item: Item, scope: Scope) -> Value | None: ...


class Path(msgspec.Struct, frozen=True):
    """A path such as `a.#b[3]`. Its parts are names, aliases of names, and list positions."""

    parts: tuple[str | int, ...]

    def resolved(self, scope: Scope) -> tuple[str | int, ...]:
        names = scope.names
        if not names:
            return self.parts
        return tuple(names.get(p, p) if isinstance(p, str) else p for p in self.parts)

    def value(self, item: Item, scope: Scope) -> Value | None:
        first, *rest = self.resolved(scope) if scope.names else self.parts
        found = item.get(first)  # type: ignore[arg-type]
        for part in rest:
            if found is None:
                return None
            found = step_into(found, part)
        return found


def step_into(value: Value, part: str | int) -> Value | None:
    if isinstance(part, str):
        inner: Value | None = value["M"].get(part) if "M" in value else None
        return inner
    items = value.get("L", ())
    return items[part] if part < len(items) else None


def resolved(node: Any, scope: Scope) -> Any:
    """Return a copy of a parsed expression that has attribute names in place of placeholders."""
    if isinstance(node, Path):
        return Path(node.resolved(scope))
    if isinstance(node, tuple):
        return tuple(resolved(part, scope) for part in node)
    if isinstance(node, msgspec.Struct):
        fields = node.__struct_fields__
        return type(node)(*(resolved(getattr(node, field), scope) for field in fields))
    return node


class Placeholder(msgspec.Struct, frozen=True):
    """`:v`: a value that the request passes beside the expression."""

    name: str

    def value(self, _: Item, scope: Scope) -> Value | None:
        return scope.values[self.name]


class Size(msgspec.Struct, frozen=True):
    """`size(operand)`: the number of characters, bytes or elements."""

    of: Operand

    def value(self, item: Item, scope: Scope) -> Value | None:
        found = self.of.value(item, scope)
        if found is None:
            return None
        [(kind, content)] = found.items()
        if kind == "B":
            return {"N": str(len(binascii.a2b_base64(content)))}
        return {"N": str(len(content))} if kind in ("S", "L", "M") or kind in SETS else None


class Sum(msgspec.Struct, frozen=True):
    """`left + right` or `left - right`."""

    sign: int
    left: Operand
    right: Operand

    def value(self, item: Item, scope: Scope) -> Value | None:
        left = _present(self.left.value(item, scope))
        right = _present(self.right.value(item, scope))
        if kind_of(left) != "N" or kind_of(right) != "N":
            raise DoesNotFit("An operand in the update expression has an incorrect data type")
        return {"N": add_numbers(left["N"], right["N"], self.sign)}


class IfNotExists(msgspec.Struct, frozen=True):
    """`if_not_exists(path, otherwise)`."""

    path: Path
    otherwise: Operand

    def value(self, item: Item, scope: Scope) -> Value | None:
        found = self.path.value(item, scope)
        return self.otherwise.value(item, scope) if found is None else found


class ListAppend(msgspec.Struct, frozen=True):
    """`list_append(first, second)`."""

    first: Operand
    second: Operand

    def value(self, item: Item, scope: Scope) -> Value | None:
        first = _present(self.first.value(item, scope))
        second = _present(self.second.value(item, scope))
        if "L" not in first or "L" not in second:
            raise DoesNotFit("An operand in the update expression has an incorrect data type")
        return {"L": first["L"] + second["L"]}


def _present(value: Value | None) -> Value:
    if value is None:
        raise DoesNotFit(
            "The provided expression refers to an attribute that does not exist in the item"
        )
    return value
