"""Random conditions on random items, against the same conditions in plain Python."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.expressions.operands import Scope
from heatsink.stores.dynamodb.wire.expressions.parser import parse_condition, parse_update
from heatsink.stores.dynamodb.wire.values import admit

NAMES = ("a", "b", "c")
SIGNS = ("=", "<>", "<", "<=", ">", ">=")

numbers = st.integers(-3, 3).map(lambda n: {"N": str(n)})
texts = st.text("xy", max_size=3).map(lambda text: {"S": text})
sets = st.sets(st.sampled_from("xyz"), min_size=1).map(lambda found: {"SS": sorted(found)})
values = numbers | texts | sets | st.booleans().map(lambda flag: {"BOOL": flag})
items = st.dictionaries(st.sampled_from(NAMES), values)


class Leaf(NamedTuple):
    kind: str
    name: str
    value: dict[str, Any]


class Tree(NamedTuple):
    word: str
    left: Any
    right: Any


leaves = st.builds(
    Leaf,
    st.sampled_from((*SIGNS, "begins_with", "contains", "attribute_exists", "IN")),
    st.sampled_from(NAMES),
    numbers | texts,
)
trees = st.recursive(
    leaves,
    lambda inner: st.builds(Tree, st.sampled_from(("AND", "OR", "NOT")), inner, inner),
    max_leaves=6,
)


def written(tree: Any, placeholders: dict[str, Any]) -> str:
    """The condition as text, with as many parentheses as it takes."""
    if isinstance(tree, Tree):
        left, right = written(tree.left, placeholders), written(tree.right, placeholders)
        return f"NOT ({left})" if tree.word == "NOT" else f"({left}) {tree.word} ({right})"
    if tree.kind == "attribute_exists":
        return f"attribute_exists({tree.name})"
    placeholder = f":v{len(placeholders)}"
    placeholders[placeholder] = tree.value
    if tree.kind == "IN":
        return f"{tree.name} IN ({placeholder})"
    if tree.kind in SIGNS:
        return f"{tree.name} {tree.kind} {placeholder}"
    return f"{tree.kind}({tree.name}, {placeholder})"


def plain(value: dict[str, Any]) -> Any:
    [(kind, content)] = value.items()
    return {"N": Decimal, "S": str, "SS": frozenset, "BOOL": bool}[kind](content)


def expected(tree: Any, item: dict[str, Any]) -> bool:
    if isinstance(tree, Tree):
        left, right = expected(tree.left, item), expected(tree.right, item)
        outcomes: dict[str, bool] = {"AND": left and right, "OR": left or right, "NOT": not left}
        return outcomes[tree.word]
    if tree.name not in item:
        return bool(tree.kind == "<>")
    if tree.kind == "attribute_exists":
        return True
    return bool(_about(tree.kind, plain(item[tree.name]), plain(tree.value)))


def _about(kind: str, found: Any, given: Any) -> Any:
    alike = type(found) is type(given)
    if kind in ("=", "IN", "<>"):
        return (alike and found == given) == (kind != "<>")
    if kind == "begins_with":
        return alike and isinstance(found, str) and found.startswith(given)
    if kind == "contains":
        return isinstance(given, str) and isinstance(found, str | frozenset) and given in found
    return (
        alike
        and {
            "<": lambda: found < given,
            "<=": lambda: found <= given,
            ">": lambda: found > given,
            ">=": lambda: found >= given,
        }[kind]()
    )


@given(trees, items)
def test_conditions_hold_when_python_says_so(tree: Any, item: dict[str, Any]) -> None:
    placeholders: dict[str, Any] = {}
    text = written(tree, placeholders)
    for value in item.values():
        admit(value)
    condition = parse_condition(text, "ConditionExpression").root
    assert condition.holds(item, Scope({}, placeholders)) == expected(tree, item), text


@pytest.mark.parametrize(
    "text",
    ["", "a", "a =", "= :a", "a = :b AND", "a BETWEEN :b", "(a = :b", "a IN ()", "a[x] = :b",
     "a. = :b", "NOT", "a = :b c", "size(a)", "f(a)", "a = :b ; drop", "_a = :b", "a[-1] = :b"],
)  # fmt: skip
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValidationFailed, match="Invalid ConditionExpression"):
        parse_condition(text, "ConditionExpression")


def test_keywords_may_be_written_small() -> None:
    condition = parse_condition("not (a between :v and :v or a in (:v))", "ConditionExpression")
    assert not condition.root.holds({"a": {"N": "1"}}, Scope({}, {":v": {"N": "1"}}))


def test_and_binds_closer_than_or() -> None:
    condition = parse_condition(
        "attribute_exists(a) OR attribute_exists(b) AND attribute_exists(c)", "ConditionExpression"
    ).root
    assert condition.holds({"a": {"N": "1"}}, Scope())
    assert not condition.holds({"b": {"N": "1"}}, Scope())


def test_a_text_is_parsed_once() -> None:
    assert parse_condition("a = :b", "X") is parse_condition("a = :b", "X")


@given(items, st.sampled_from(NAMES), st.sampled_from(NAMES), values)
def test_an_update_leaves_the_old_item_alone(
    item: dict[str, Any], target: str, gone: str, value: dict[str, Any]
) -> None:
    before = {name: dict(old) for name, old in item.items()}
    update = parse_update(f"SET {target}x = :v REMOVE {gone}").root
    after = update.apply(item, Scope({}, {":v": value}))
    assert item == before
    kept = {name: old for name, old in item.items() if name != gone}
    assert after == {**kept, f"{target}x": value}


def test_a_nested_update_leaves_the_old_item_alone() -> None:
    item = {"m": {"M": {"l": {"L": [{"N": "1"}, {"N": "2"}]}}}}
    update = parse_update("SET m.l[0] = :v, m.n = m.l[1] REMOVE m.l[1]").root
    after = update.apply(item, Scope({}, {":v": {"N": "9"}}))
    assert item == {"m": {"M": {"l": {"L": [{"N": "1"}, {"N": "2"}]}}}}
    assert after == {"m": {"M": {"l": {"L": [{"N": "9"}]}, "n": {"N": "2"}}}}
