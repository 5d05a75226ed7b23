"""Numbers, sizes, equality and order of attribute values; units."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.emulator.units import read_units, write_units
from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.values import (
    add_numbers,
    admit,
    admit_item,
    equal,
    native,
    normal_number,
    number_size,
)

decimals = st.decimals(
    min_value=Decimal("-1E60"), max_value=Decimal("1E60"), allow_nan=False, places=10
).filter(lambda number: len(str(number).replace(".", "").strip("-0")) <= 38)


@given(decimals)
def test_a_normal_number_is_the_same_number_and_stays_as_it_is(number: Decimal) -> None:
    normal = normal_number(str(number))
    assert Decimal(normal) == number
    assert normal_number(normal) == normal
    assert "E" not in normal


@given(decimals, decimals)
def test_numbers_are_ordered_by_value(one: Decimal, two: Decimal) -> None:
    left, right = {"N": normal_number(str(one))}, {"N": normal_number(str(two))}
    assert (native(left) < native(right)) == (one < two)  # type: ignore[operator]
    assert equal(left, right) == (one == two)


@given(st.text(), st.text())
def test_texts_are_ordered_by_their_bytes(one: str, two: str) -> None:
    assert (native({"S": one}) < native({"S": two})) == (  # type: ignore[operator]
        one.encode("utf-8", "surrogatepass") < two.encode("utf-8", "surrogatepass")
    )


@given(st.integers(-(10**37), 10**37), st.integers(-(10**37), 10**37))
def test_sums_are_exact(one: int, two: int) -> None:
    assert add_numbers(str(one), str(two)) == str(one + two)
    assert add_numbers(str(one), str(two), -1) == str(one - two)


def test_a_sum_that_needs_more_digits_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="Number overflow"):
        add_numbers("1E38", "0.1")


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1_0", "0x1", "NaN", "Infinity", "--1", "1.1.1", "\u0661"]
)
def test_what_is_not_a_number(text: str) -> None:
    with pytest.raises(ValidationFailed):
        normal_number(text)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ({"S": "ü"}, 2),
        ({"B": "AAAA"}, 3),
        ({"BOOL": False}, 1),
        ({"NULL": True}, 1),
        ({"N": "0"}, 1),
        ({"N": "7"}, 2),
        ({"N": "-1234"}, 4),
        ({"SS": ["a", "bc"]}, 3),
        ({"L": [{"S": "ab"}]}, 3 + 1 + 2),
        ({"M": {"key": {"S": "ab"}}}, 3 + 1 + 3 + 2),
    ],
)
def test_sizes(value: Any, size: int) -> None:
    assert admit(value) == size


def test_trailing_zeros_are_free() -> None:
    assert number_size("1" + "0" * 20) == number_size("1") == 2


def test_an_items_size_counts_its_names() -> None:
    assert admit_item({"name": {"S": "abc"}}) == 7


@pytest.mark.parametrize(
    "value",
    [{"S": 1}, {"N": 1}, {"B": "a"}, {"B": 1}, {"BOOL": "true"}, {"NULL": False}, {"L": {}},
     {"L": [1]}, {"M": []}, {"M": {"a": 1}}, {"SS": "a"}, {"SS": [1]}, {"X": "a"}, {},
     {"BS": [[], []]}, {"B": []}],
)  # fmt: skip
def test_malformed_values_are_refused(value: Any) -> None:
    with pytest.raises(ValidationFailed):
        admit(value)


def test_values_nest_32_levels_deep() -> None:
    value: Any = {"S": "x"}
    for _ in range(31):
        value = {"L": [value]}
    admit(value)
    with pytest.raises(ValidationFailed, match="Nesting Levels"):
        admit({"L": [{"L": [value]}]})


def test_sets_are_equal_in_any_order_at_any_depth() -> None:
    one = {"L": [{"M": {"a": {"NS": ["1", "2"]}}}]}
    two = {"L": [{"M": {"a": {"NS": ["2", "1"]}}}]}
    assert equal(one, two)
    assert not equal(one, {"L": []})


@pytest.mark.parametrize(
    ("size", "writes", "reads"),
    [(0, 1, 1), (1, 1, 1), (1_024, 1, 1), (1_025, 2, 1), (4_096, 4, 1), (4_097, 5, 2)],
)
def test_units(size: int, writes: int, reads: int) -> None:
    assert write_units(size) == writes
    assert write_units(size, 2) == 2 * writes
    assert read_units(size, True) == reads
    assert read_units(size, False) == reads / 2
    assert read_units(size, True, 2) == 2 * reads
