"""The client on hostile servers (`hostile.py`): what it promises, and bugs that must be found."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from heatsink.primitives.cut import Cut
from heatsink.stores.dynamodb import client
from heatsink.stores.dynamodb.client import Turns
from heatsink.stores.dynamodb.connections import Broken, Connection, NotHttp, Pool, WireAnswer
from heatsink.testing.clocks import Deadlock
from tests.planted import Bugs, Hunt, usually
from tests.stores.dynamodb.hostile import HONEST, HOSTILE, Violation, simulate

SEEDS = usually(25, 2_000)
BUGS = bug = Bugs()
HUNT = Hunt("dynamodb-client", BUGS, simulate, (Violation, Deadlock, Broken), usually(25, 100))


def test_no_answer_is_lost_mixed_up_or_late() -> None:
    kinds: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            world = simulate(seed)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}")
        kinds += world.kinds
        outcomes += world.outcomes
    assert set(kinds) == {*HONEST, *HOSTILE}
    assert outcomes["answered"] > 40 * SEEDS
    assert outcomes["Unavailable"] > 10 * SEEDS


@bug
def a_connection_is_kept_after_a_timeout() -> Iterator[None]:
    """The late answer then goes to the next request."""

    def keep(self: Connection, waiter: asyncio.Future[WireAnswer]) -> None:
        if self._waiter is waiter:
            self._waiter = None
            self._pool.release(self)

    with patch.object(Connection, "give_up", keep):
        yield


@bug
def a_cancelled_call_closes_a_connection_that_it_no_longer_has() -> Iterator[None]:
    with patch.object(Connection, "give_up", lambda self, _: self.abort()):
        yield


@bug
def an_interim_answer_counts_as_the_answer() -> Iterator[None]:
    def complete(self: Connection) -> None:
        self._status = self._parser.get_status_code()

    with patch.object(Connection, "on_message_complete", complete):
        yield


@bug
def headers_of_an_interim_answer_are_kept() -> Iterator[None]:
    """The answer then has the date of 103 Early Hints, if it has none of its own."""
    complete = Connection.on_message_complete

    def keep(self: Connection) -> None:
        named = self._named
        complete(self)
        self._named = named

    with patch.object(Connection, "on_message_complete", keep):
        yield


@bug
def bytes_after_the_answer_are_ignored() -> Iterator[None]:
    """Bytes that nobody asked for stay in the parser, before the next answer."""
    receive = Connection.data_received

    def lenient(self: Connection, data: bytes) -> None:
        if self._waiter is None:
            self._parser.feed_data(data)
        else:
            receive(self, data)

    with patch.object(Connection, "data_received", lenient):
        yield


@bug
def the_last_answer_on_a_connection_is_not_noticed() -> Iterator[None]:
    finish = Connection._finish

    def keep(self: Connection, waiter: asyncio.Future[WireAnswer]) -> None:
        abort = self.abort
        self.abort = lambda: self._pool.release(self)  # type: ignore[method-assign]
        self._received = 0
        finish(self, waiter)
        self.abort = abort  # type: ignore[method-assign]
        self._status, self._body = 0, []

    with patch.object(Connection, "_finish", keep):
        yield


@bug
def the_end_of_the_connection_completes_an_answer() -> Iterator[None]:
    lost = Connection.connection_lost

    def complete(self: Connection, error: Exception | None) -> None:
        if self._body and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(WireAnswer(200, b"", b"".join(self._body)))
        lost(self, error)

    with patch.object(Connection, "connection_lost", complete):
        yield


@bug
def writes_are_repeated_too() -> Iterator[None]:
    with patch.object(client, "REPEATABLE", {"GetItem", "PutItem"}):
        yield


@bug
def a_closed_connection_is_taken_from_the_pool() -> Iterator[None]:
    def take(self: Pool) -> Connection | None:
        return self._idle.pop() if self._idle else None

    def stay(self: Pool, connection: Connection) -> None:
        self._all.discard(connection)

    with patch.object(Pool, "_take", take), patch.object(Pool, "left", stay):
        yield


@bug
def a_turn_that_comes_with_a_cancellation_is_lost() -> Iterator[None]:
    async def take(self: Turns) -> None:
        if not self.take_if_free():
            waiter: Any = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    with patch.object(Turns, "take", take):
        yield


@bug
def a_broken_connection_tells_nobody() -> Iterator[None]:
    with (
        patch.object(Connection, "_fail", lambda self, _: self.abort()),
        patch.object(Cut, "_look", lambda _: None),
    ):
        yield


@bug
def an_error_of_the_parser_is_ignored() -> Iterator[None]:
    fail = Connection._fail

    def lenient(self: Connection, error: OSError) -> None:
        if isinstance(error, NotHttp) and self._status and self._waiter is not None:
            self._finish(self._waiter)
        else:
            fail(self, error)

    with patch.object(Connection, "_fail", lenient):
        yield


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    HUNT.must_find(name)
