from __future__ import annotations

from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import InvalidKey, InvalidSetting
from heatsink.reads.templates import key_maker


def product(id: Any, shop: Any = "main", *more: Any, **others: Any) -> None: ...


@pytest.mark.parametrize(
    ("template", "arguments", "named", "key"),
    [
        ("product:{id}", (42,), {}, "product:42"),
        ("product:{id}", (), {"id": "a"}, "product:a"),
        ("{id}/page", ("x",), {"shop": "y"}, "x/page"),
        ("of:{shop}", (42,), {}, "of:main"),
        ("{shop}:{id}", (1, "s"), {}, "s:1"),
        ("{{{id}}}", (1,), {}, "{1}"),
        ("product:{id}", (UUID(int=1),), {}, f"product:UUID({UUID(int=1)})"),
        ("product:{id}", (None,), {}, "product:NoneType(None)"),
        ("product:{id}", ("42",), {}, "product:'42'"),
        ("product:{id}", ("-42",), {}, "product:'-42'"),
        ("product:{id}", ("'42'",), {}, "product:''42''"),
        ("product:{id}", ("a-42",), {}, "product:a-42"),
        ("product:{id}", (True,), {}, "product:bool(True)"),
        ("product:{id.real}", (7,), {}, "product:7"),
        ("{shop}/{id.imag}", (7, "s"), {}, "s/0"),
        (lambda id, shop="main": f"{shop}-{id}", (7,), {}, "main-7"),
    ],
)
def test_a_call_has_a_key(
    template: str, arguments: tuple[Any, ...], named: dict[str, Any], key: str
) -> None:
    assert key_maker(template, product)(*arguments, **named) == key


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("product", "must name a parameter of product"),
        ("product:{name}", "{name}, but product.. has no such parameter; it has id, shop$"),
        ("product:{more}", "{more}, but"),
        ("product:{others}", "{others}, but"),
        ("product:{id.}", "only parameters or their attributes"),
        ("product:{id[0]}", "only parameters or their attributes"),
        ("product:{}", "only parameters or their attributes"),
        ("product:{id!r}", "only parameters or their attributes"),
        ("product:{id:>4}", "only parameters or their attributes"),
        (None, "any number of arguments, so no key"),
        ("product:{id", "is not a valid template"),
        ("{id}{shop}", "text between"),
        (42, "must be a str"),
    ],
)
def test_a_template_that_fits_no_call_is_refused_when_it_is_written(
    template: Any, says: str
) -> None:
    with pytest.raises(InvalidSetting, match=says):
        key_maker(template, product)


def test_an_object_without_a_text_of_its_own_is_no_part_of_a_key() -> None:
    """Its address would be: it never hits, or hits what another object left."""
    with pytest.raises(InvalidKey, match=r"^an object has neither __str__ nor __repr__"):
        key_maker("product:{id}", product)(object())


def test_an_enum_is_no_plain_int() -> None:
    class Kind(Enum):
        BOOK = 1

    assert key_maker("product:{id}", product)(Kind.BOOK) == "product:Kind(Kind.BOOK)"


def test_without_a_key_the_function_and_all_arguments_are_the_key() -> None:
    def price(id: Any, currency: Any = "EUR") -> None: ...

    key_of = key_maker(None, price)
    assert key_of(1) == key_of(id=1, currency="EUR")
    assert key_of(1).endswith("price(1, EUR)")


def test_a_function_without_parameters_has_one_key() -> None:
    def front_page() -> None: ...

    assert key_maker("front", front_page)() == "front"
    assert key_maker(None, front_page)().endswith("front_page()")
    with pytest.raises(TypeError):
        key_maker("front", front_page)(1)


def test_an_attribute_that_is_missing_and_a_key_that_is_no_text_are_named() -> None:
    with pytest.raises(InvalidKey, match=r"uses {id.name}: 'int' object has no attribute 'name'"):
        key_maker("product:{id.name}", product)(1)
    with pytest.raises(InvalidKey, match="must return a text, not 5"):
        key_maker(lambda *_: 5, product)(1)


SCALARS = st.one_of(
    st.integers(-50, 50),
    st.text("0123456789-'()UIDint", max_size=6),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False),
    st.uuids(),
    st.uuids().map(str),
)


@given(SCALARS, SCALARS)
def test_arguments_of_different_types_never_share_a_key(one: Any, two: Any) -> None:
    key_of = key_maker("product:{id}", product)
    is_same = type(one) is type(two) and (one == two and str(one) == str(two))
    assert (key_of(one) == key_of(two)) == is_same


@given(
    parts=st.lists(st.sampled_from(["", "a", "%", "%3A", "3A"]), min_size=2, max_size=5),
    places=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_two_calls_share_a_key_only_if_they_are_the_same(
    parts: list[str], places: tuple[int, int]
) -> None:
    key_of = key_maker("{shop}:{id}", product)
    one, two = ((":".join(parts[:place]), ":".join(parts[place:])) for place in places)
    assert (key_of(*reversed(one)) == key_of(*reversed(two))) == (one == two)
