"""Parts of an item, as a projection or the paths of an update name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from heatsink.dynamo.errors import ValidationFailed
from heatsink.dynamo.values import Item, Value

Parts = tuple[str | int, ...]
Tree = dict[str | int, Any]


def check_paths(paths: list[Parts]) -> None:
    for number, one in enumerate(paths):
        for other in paths[number + 1 :]:
            shorter = min(len(one), len(other))
            if one[:shorter] == other[:shorter]:
                raise paths_clash("ProjectionExpression", "overlap", one, other)


def paths_clash(field: str, how: str, one: Parts, other: Parts) -> ValidationFailed:
    return ValidationFailed(
        f"Invalid {field}: Two document paths {how} with each other; must remove or rewrite one "
        f"of these paths; path one: {_shown(one)}, path two: {_shown(other)}"
    )


def _shown(parts: Parts) -> str:
    return f"[{', '.join(f'[{p}]' if isinstance(p, int) else p for p in parts)}]"


def project(item: Item, paths: Iterable[Parts]) -> Item:
    """Maps keep their names on the way; of lists only the chosen elements stay, in order."""
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
