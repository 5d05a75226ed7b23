"""Update expressions (SET, REMOVE, ADD and DELETE) and projections.

All operands are computed from the item as it was before the update. Then SET, ADD and DELETE are
applied, and REMOVE last. REMOVE deletes list elements from the highest position down, so that the
other positions stay valid. Only maps and lists on a changed path are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from heatsink.stores.dynamodb.wire.errors import DoesNotFit, ValidationFailed
from heatsink.stores.dynamodb.wire.values import SETS, Item, Value, add_numbers, kind_of

from .operands import (
    NO_SCOPE,
    TYPE_NAMES,
    IfNotExists,
    ListAppend,
    Operand,
    Path,
    Placeholder,
    Scope,
    Sum,
    step_into,
)

Parts = tuple[str | int, ...]
Tree = dict[str | int, Any]
UPDATE = "UpdateExpression"
BAD_PATH = "The document path provided in the update expression is invalid for update"
BAD_TYPE = "An operand in the update expression has an incorrect data type"


def check_paths(paths: list[Parts], field: str) -> None:
    """Raise if two paths of an expression clash. An overlap is reported before a conflict.

    Paths overlap if one begins with the other, such as `a` and `a.b`. They conflict if they use the
    same place as a list and as a map, such as `a[0]` and `a.b`.
    """
    conflict: ValidationFailed | None = None
    for number, other in enumerate(paths):
        for one in paths[:number]:
            how = _clash(one, other)
            if how == "overlap":
                raise paths_clash(field, how, one, other)
            if how == "conflict" and conflict is None:
                conflict = paths_clash(field, how, one, other)
    if conflict is not None:
        raise conflict


def _clash(one: Parts, other: Parts) -> str | None:
    for left, right in zip(one, other, strict=False):
        if isinstance(left, int) != isinstance(right, int):
            return "conflict"
        if left != right:
            return None
    return "overlap"


def paths_clash(field: str, how: str, one: Parts, other: Parts) -> ValidationFailed:
    return ValidationFailed(
        f"Invalid {field}: Two document paths {how} with each other; must remove or rewrite one "
        f"of these paths; path one: {shown_path(one)}, path two: {shown_path(other)}"
    )


def shown_path(parts: Parts) -> str:
    return f"[{', '.join(f'[{p}]' if isinstance(p, int) else p for p in parts)}]"


def project(item: Item, paths: Iterable[Parts]) -> Item:
    """Copy the parts of an item that are at `paths`.

    The maps and lists around each part stay. A list keeps only the selected elements, without gaps.
    """
    tree: Tree = {}
    for parts in paths:
        branch = tree
        for part in parts[:-1]:
            branch = branch.setdefault(part, {})
        branch.setdefault(parts[-1], {})
    return _chosen(item, tree)


def _chosen(found: Item, tree: Tree) -> Item:
    chosen: Item = {}
    for name, branch in tree.items():
        value = found.get(name) if isinstance(name, str) else None
        part = None if value is None else _within(value, branch)
        if part is not None and isinstance(name, str):
            chosen[name] = part
    return chosen


def _within(value: Value, branch: Tree) -> Value | None:
    if not branch:
        return value
    if "M" in value:
        inner = _chosen(value["M"], branch)
        return {"M": inner} if inner else None
    if "L" not in value:
        return None
    elements = value["L"]
    positions = sorted(p for p in branch if isinstance(p, int) and p < len(elements))
    parts = [_within(elements[position], branch[position]) for position in positions]
    kept = [part for part in parts if part is not None]
    return {"L": kept} if kept else None


class Update(msgspec.Struct, frozen=True):
    sets: tuple[tuple[Path, Operand], ...]
    removes: tuple[Path, ...]
    adds: tuple[tuple[Path, Placeholder], ...]
    deletes: tuple[tuple[Path, Placeholder], ...]

    def targets(self) -> list[Path]:
        """Return the paths that the update changes."""
        touched = (*self.sets, *self.adds, *self.deletes)
        return [*(path for path, _ in touched), *self.removes]

    def paths(self, scope: Scope) -> list[Parts]:
        return [path.resolved(scope) for path in self.targets()]

    def apply(self, item: Item, scope: Scope) -> Item:
        values = [(path.resolved(scope), op.value(item, scope)) for path, op in self.sets]
        adds = [(path.resolved(scope), operand) for path, operand in self.adds]
        changed = dict(item)
        for parts, value in sorted([*values, *adds], key=_position_of):
            if value is None:
                raise DoesNotFit(
                    "The provided expression refers to an attribute that does not exist in the item"
                )
            if isinstance(value, Placeholder):
                assign(changed, parts, _sum_of(changed, parts, scope.values[value.name]))
            else:
                assign(changed, parts, value)
        for path, operand in self.deletes:
            _delete(changed, path, operand, scope)
        for path in sorted(self.removes, key=_last_position, reverse=True):
            remove(changed, path.resolved(scope))
        return changed

    def check(self, scope: Scope, late: str | None = None) -> None:
        """Raise if paths clash, or if an operator or function never accepts a placeholder's type.

        `late` is a mistake that the parser found. It is reported only if there is no clash and no
        wrong type in ADD and DELETE.
        """
        check_paths(self.paths(scope), UPDATE)
        self._check_sets(scope)
        if late is not None:
            raise ValidationFailed(f"Invalid {UPDATE}: {late}")
        self._check_operands(scope)

    def check_paths(self) -> None:
        """Raise if paths clash.

        Attribute names must already replace their placeholders in this update.
        """
        check_paths(self.paths(NO_SCOPE), UPDATE)

    def check_types(self, scope: Scope) -> None:
        """Raise if a placeholder has a type that its function never accepts."""
        if self.adds or self.deletes:
            self._check_sets(scope)
        self._check_operands(scope)

    def _check_sets(self, scope: Scope) -> None:
        for verb, actions, kinds in (
            ("ADD", self.adds, ("N", *SETS)),
            ("DELETE", self.deletes, tuple(SETS)),
        ):
            for _, operand in actions:
                kind = kind_of(scope.values[operand.name])
                if kind not in kinds:
                    raise ValidationFailed(
                        f"Invalid {UPDATE}: Incorrect operand type for operator or function; "
                        f"operator: {verb}, operand type: {TYPE_NAMES[kind]}, "
                        f"typeSet: {'ALLOWED_FOR_' + verb}_OPERAND"
                    )

    def _check_operands(self, scope: Scope) -> None:
        for _, value in self.sets:
            if not isinstance(value, Placeholder | Path):
                _check_operand(value, scope)


def _check_operand(operand: Operand, scope: Scope) -> None:
    """Raise if a function or sum has a placeholder of a type that it never accepts."""
    if isinstance(operand, IfNotExists):
        _check_operand(operand.otherwise, scope)
    elif isinstance(operand, ListAppend):
        _check_types("list_append", (operand.first, operand.second), "L", scope)
    elif isinstance(operand, Sum):
        sign = "+" if operand.sign > 0 else "-"
        _check_types(sign, (operand.left, operand.right), "N", scope)


def _check_types(name: str, operands: tuple[Operand, ...], kind: str, scope: Scope) -> None:
    for operand in operands:
        _check_operand(operand, scope)
        if isinstance(operand, Placeholder) and kind not in scope.values[operand.name]:
            found = kind_of(scope.values[operand.name])
            raise ValidationFailed(
                "Invalid UpdateExpression: Incorrect operand type for operator or function; "
                f"operator or function: {name}, operand type: {found}"
            )


def _position_of(assignment: tuple[Parts, Value | Placeholder | None]) -> int:
    """Return the list position that an assignment changes; -1 if it does not change a list.

    Updates assign in this order, since positions beyond a list's end append.
    """
    last = assignment[0][-1]
    return last if isinstance(last, int) else -1


def _last_position(path: Path) -> int:
    last = path.parts[-1]
    return last if isinstance(last, int) else -1


def assign(item: Item, parts: Parts, value: Value) -> None:
    holder, last = _holder(item, parts)
    if isinstance(holder, list):
        assert isinstance(last, int)
        holder[last : last + 1] = [value]
    else:
        holder[last] = value


def remove(item: Item, parts: Parts) -> None:
    holder, last = _holder(item, parts)
    if isinstance(holder, list):
        assert isinstance(last, int)
        del holder[last : last + 1]
    else:
        holder.pop(last, None)


def _holder(item: Item, parts: Parts) -> tuple[Any, str | int]:
    """Return the map or list in which a path ends, and the path's last name or index.

    All maps and lists on the way are copied first, so that the stored item does not change.
    """
    holder: Any = item
    for part, following in pairwise(parts):
        inner = _at(holder, part)
        kind = "L" if isinstance(following, int) else "M"
        if inner is None or kind not in inner:
            raise DoesNotFit(BAD_PATH)
        copied = inner[kind].copy()
        holder[part] = {kind: copied}
        holder = copied
    return holder, parts[-1]


def _at(holder: Any, part: str | int) -> Value | None:
    kind = "L" if isinstance(holder, list) else "M"
    return step_into({kind: holder}, part)


def _sum_of(item: Item, parts: Parts, given: Value) -> Value:
    """Return what ADD leaves at a path: the sum of two numbers, or the union of two sets."""
    current: Value | None = {"M": item}
    for part in parts:
        current = None if current is None else step_into(current, part)
    if current is None:
        return given
    if current.keys() != given.keys():
        raise DoesNotFit(BAD_TYPE)
    if "N" in given:
        return {"N": add_numbers(current["N"], given["N"])}
    kind = kind_of(given)
    return {kind: [*current[kind], *_missing(given[kind], current[kind])]}


def _delete(item: Item, path: Path, operand: Placeholder, scope: Scope) -> None:
    current, given = path.value(item, scope), scope.values[operand.name]
    if current is None:
        _holder(item, path.resolved(scope))  # raises if there is no place for the set
        return
    if current.keys() != given.keys():
        raise DoesNotFit(BAD_TYPE)
    kind = kind_of(given)
    left = list(_missing(current[kind], given[kind]))
    if left:
        assign(item, path.resolved(scope), {kind: left})
    else:
        remove(item, path.resolved(scope))


def _missing(members: list[str], among: list[str]) -> Iterator[str]:
    known = set(among)
    return (member for member in members if member not in known)
