"""`@heatsink.cached`, on functions that are defined before a client is open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

import heatsink
from heatsink.errors import Closed, InvalidKey, InvalidSetting
from heatsink.reads.reads import Reads

loads: list[Any] = []


@heatsink.cached("product:{id}", tags=["catalogue", "shop:{shop}"], fresh_for=60, stale_for=60)
async def product(id: Any, shop: int = 1) -> str:
    loads.append(id)
    return f"{id!r} of {shop}"


@heatsink.cached("user:{user.id}", fresh_for=60, stale_for=60)
def greeting(user: Any) -> str:
    loads.append(user.id)
    return f"hello {user.id}"


@heatsink.cached
async def front_page() -> int:
    loads.append("front")
    return len(loads)


@heatsink.cached(key=lambda a, b: f"sum:{min(a, b)}:{max(a, b)}", fresh_for=60, stale_for=60)
async def total(a: int, b: int) -> int:
    loads.append((a, b))
    return a + b


@pytest.fixture(autouse=True)
def no_loads() -> None:
    loads.clear()


async def test_a_function_decorated_at_import_time_uses_the_client_that_is_open() -> None:
    for _ in range(2):  # the second client begins with an empty cache
        loads.clear()
        async with heatsink.connect("memory://") as hs:
            assert await product(7) == await product(id=7) == "7 of 1"
            assert loads == [7]
            hs.reads.forget(product.key(7))
            await product(7)
            assert loads == [7, 7]


async def test_whole_numbers_and_texts_are_kept_apart() -> None:
    async with heatsink.connect("memory://"):
        assert await product(1) == "1 of 1"
        assert await product("1") == "'1' of 1"


async def test_values_are_forgotten_by_their_tag() -> None:
    async with heatsink.connect("memory://") as hs:
        await asyncio.gather(product(1, 1), product(2, 2), product(3, 2))
        hs.reads.forget_tag("shop:2")
        await asyncio.gather(product(1, 1), product(2, 2), product(3, 2))
        assert sorted(loads) == [1, 2, 2, 3, 3]
        hs.reads.forget_tag("catalogue")
        await product(1, 1)
        assert loads.count(1) == 2


async def test_no_parameters_and_key_functions() -> None:
    async with heatsink.connect("memory://"):
        assert await front_page() == await front_page() == 1
        assert await total(1, 2) == await total(2, 1) == 3
        assert loads == ["front", (1, 2)]


def test_a_plain_function_uses_the_client_without_asyncio() -> None:
    user = SimpleNamespace(id="ada")
    with heatsink.connect_sync("memory://") as hs:
        assert greeting(user) == greeting(user) == "hello ada"
        assert loads == ["ada"]
        hs.reads.forget(greeting.key(user))
        greeting(user)
        assert loads == ["ada", "ada"]
    with pytest.raises(Closed, match="no client is open that could cache greeting"):
        greeting(user)
    assert greeting.__wrapped__(user) == "hello ada"  # type: ignore[attr-defined]


async def test_without_an_open_client_a_call_says_what_to_do() -> None:
    with pytest.raises(Closed, match=r"heatsink\.connect\(…\)`, or call product.__wrapped__"):
        await product(1)


async def test_with_two_open_clients_a_call_does_not_choose() -> None:
    async with heatsink.connect("memory://"), heatsink.connect("memory://"):
        with pytest.raises(InvalidSetting, match="2 clients are open"):
            await product(1)


async def test_the_client_of_another_thread_is_not_taken() -> None:
    with (  # opens a client with an event loop of its own
        heatsink.connect_sync("memory://"),
        pytest.raises(Closed, match="no client is open"),
    ):
        await product(1)


def test_wrong_decorations_are_refused_at_once() -> None:
    with pytest.raises(InvalidSetting, match="key is given twice"):
        heatsink.cached("a", key="b")
    with pytest.raises(InvalidSetting, match="decorates a function, not 5"):
        heatsink.cached("a")(5)  # type: ignore[call-overload]
    with pytest.raises(InvalidSetting, match="tags must be a list"):
        heatsink.cached("a:{id}", tags="shop")(lambda id: id)
    with pytest.raises(InvalidSetting, match="has no such parameter; it has id"):
        heatsink.cached("a:{id}", tags=["shop:{shop}"])(lambda id: id)


async def test_a_bad_tag_is_refused() -> None:
    async with heatsink.connect("memory://") as hs:
        with pytest.raises(InvalidKey):
            hs.reads.forget_tag("")


def test_an_unknown_parameter_names_the_similar_one() -> None:
    with pytest.raises(InvalidSetting, match="no parameter 'fresh': did you mean 'fresh_for'"):
        heatsink.cached("product:{id}", fresh=1)  # type: ignore[call-overload]


async def test_a_function_that_is_not_async_is_named_by_its_first_call() -> None:
    """Not by the decorator: a plain function may return an awaitable."""
    reads = Reads()

    @reads.cached("plain:{id}")
    def plain(id: int) -> Awaitable[int]:
        return id  # type: ignore[return-value]

    with pytest.raises(
        InvalidSetting, match=r"not .*plain, which returned 1: define it with `async def`"
    ):
        await plain(1)
    reads.close()
