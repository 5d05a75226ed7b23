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
        ("product:{id}", (UUID(int=1),), {}, f"product:{UUID(int=1)}"),
        ("product:{id}", (None,), {}, "product:None"),
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
        ("product:{id.name}", "parameters only"),
        ("product:{}", "parameters only"),
        ("product:{id!r}", "parameters only"),
        ("product:{id:>4}", "parameters only"),
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
    with pytest.raises(InvalidKey, match="object"):
        key_maker("product:{id}", product)(object())


def test_an_enum_is_no_plain_int() -> None:
    class Kind(Enum):
        BOOK = 1

    assert key_maker("product:{id}", product)(Kind.BOOK) == "product:Kind.BOOK"


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
