"""The DynamoDB client on virtual time, against servers that do what servers do on bad days.

Each call carries a number, and an honest answer echoes it. After every run it must hold:

- no call gets the answer to another, nor half an answer, however late or odd the bytes come;
- no call gets headers that are not of its answer;
- a call ends by its deadline;
- a call whose complete answer came in time succeeds;
- a write is never sent twice, and a connection gets no request that its server will not read;
- no call closes the connection of another;
- all turns are given back, and closing leaves no connection.

A server that sends an answer that nobody asked for, just when the next request is on its way, is
not played: HTTP/1.1 has no means to tell.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random
from typing import Any, NoReturn

from heatsink.errors import HeatsinkError
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials, Turns
from heatsink.stores.dynamodb.connections import Connection
from heatsink.testing import SkewedClock, run_on_virtual_time

TIMEOUT_S = 2.0
LATE_S = 0.1
TICK_S = 1e-6  # timers of one moment fire in any order
TURNS, CALLERS, CALLS = 4, 10, 12
EARLY, EARLY_MS = b"Date: Tue, 14 Nov 2000 22:13:20 GMT\r\n", 974_240_000_000
HONEST = ("plain", "chunked", "interim", "last")
HOSTILE = (
    "silence", "reset", "end", "half and end", "half and reset", "half and silence", "slow",
    "too long", "too short", "twice", "unasked later", "garbage", "early", "late",
)  # fmt: skip


class Violation(AssertionError):
    """The client did what it must never do."""


class Wire(asyncio.Transport):
    """One connection: a transport for the client, with the server at its other end."""

    def __init__(self, world: World, connection: Connection) -> None:
        super().__init__()
        self._world = world
        self._rng = world.rng
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._free_s = 0.0  # bytes arrive in order
        self._refuses = ""  # why the server reads no more requests
        self._unsent = 0
        self._kind = ""
        self._number: int | None = None  # of the call that waits for its answer

    def write(self, data: Any) -> None:
        if self._is_closed:
            self._world.violated("a request was sent on a closed connection")
        if self._refuses:
            self._world.violated(f"a request was sent on a connection after {self._refuses}")
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        call = json.loads(body)
        self._number = call["n"]
        self._world.sent[call["n"]] += 1
        if self._world.sent[call["n"]] > 1 and b"PutItem" in head:
            self._world.violated("a write was sent twice")
        self._kind = self._rng.choice(HONEST if self._rng.random() < 0.6 else HOSTILE)
        self._world.kinds[self._kind] += 1
        self._answer(call["n"])

    def _answer(self, number: int) -> None:
        body = json.dumps({"n": number}).encode() + b" " * self._rng.randrange(200)
        ok, more = b"HTTP/1.1 200 OK\r\nDate: Tue, 14 Nov 2023 22:13:20 GMT\r\n", b""
        length = len(body)
        if self._kind == "interim":
            early = b"HTTP/1.1 103 Early Hints\r\n" + EARLY + b"\r\n"
            ok = early * self._rng.randint(1, 2) + b"HTTP/1.1 200 OK\r\n"
        if self._kind == "last":
            more = b"Connection: close\r\n"
        if self._kind == "too long":
            length += 20
        if self._kind == "too short":
            length -= self._rng.randrange(1, 5)
        answer = ok + more + b"Content-Length: %d\r\n\r\n" % length + body
        if self._kind == "chunked":
            answer = ok + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
                length,
                body,
            )
        self._play(number, answer, len(answer) - len(body))

    def _play(self, number: int, answer: bytes, head: int) -> None:  # noqa: C901  a list of kinds
        kind, rng = self._kind, self._rng
        if kind in HONEST:
            self._send_in_pieces(answer, number)
        elif kind in ("reset", "end"):
            self._later(self._lose, ConnectionResetError("reset") if kind == "reset" else None)
        elif kind.startswith("half"):
            self._send_in_pieces(answer[: rng.randrange(1, len(answer))])
            if not kind.endswith("silence"):
                self._later(self._lose, ConnectionResetError() if kind.endswith("reset") else None)
        elif kind == "slow":
            for place in range(head + 5):
                self._later(self._deliver, answer[place : place + 1], rest_s=0.2)
        elif kind == "garbage":
            self._send_in_pieces(rng.randbytes(rng.randrange(1, 50)) + b"\r\n\r\n")
        elif kind == "twice":
            self._later(self._deliver, answer + answer)
        elif kind == "unasked later":
            self._send_in_pieces(answer, number)
            self._later(self._deliver_if_idle, answer)
        elif kind == "early":
            self._unsent, self._refuses = 100, "an answer before the request was sent"
            self._send_in_pieces(answer, number)
        elif kind == "late":
            self._later(self._deliver, answer, rest_s=TIMEOUT_S + 0.01)
        elif kind in ("too long", "too short"):
            self._later(self._deliver, answer)

    def _send_in_pieces(self, answer: bytes, number: int | None = None) -> None:
        cuts = sorted(self._rng.choices(range(len(answer) + 1), k=self._rng.randrange(4)))
        for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
            last = number if end == len(answer) else None
            if start < end:
                self._later(self._deliver, answer[start:end], last)

    def _later(self, what: Any, *arguments: Any, rest_s: float | None = None) -> None:
        rest_s = self._rng.choice((0.0, 0.001, 0.03)) if rest_s is None else rest_s
        self._free_s = max(self._free_s, self._loop.time()) + rest_s + TICK_S
        self._loop.call_at(self._free_s, what, *arguments)

    def _deliver(self, data: bytes, number: int | None = None) -> None:
        """Deliver a piece of an answer; with a number, the last piece of that call's answer."""
        if number is not None and self._rng.random() < 0.1:
            # The other call takes this connection before the cancelled one runs again.
            self._loop.call_soon(self._deliver_last, data, number)
            self._loop.call_soon(self._world.cancel, number)
            self._world.begin_call()
        elif number is not None:
            self._deliver_last(data, number)
        elif not self._is_closed:
            self._connection.data_received(data)

    def _deliver_last(self, data: bytes, number: int) -> None:
        if not self._is_closed:
            self._number = None
            if self._kind == "last":
                self._refuses = "Connection: close"
            self._world.answered.add(number)
            self._connection.data_received(data)
            if self._rng.random() < 0.1:
                self._later(self._lose_if_idle, rest_s=self._rng.choice((0.0, 0.01, 3.0)))

    def _deliver_if_idle(self, data: bytes) -> None:
        if self._number is None and not self._is_closed:
            self._refuses = "bytes that nobody asked for"
            self._connection.data_received(data)

    def _lose_if_idle(self) -> None:
        if self._number is None:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_closed:
            self._is_closed = True
            if error is None:
                self._connection.eof_received()
            self._loop.call_soon(self._connection.connection_lost, error)

    def abort(self) -> None:
        if self._is_closed:
            return
        number = self._number
        if number is not None and self._kind in (*HONEST, "late") and self._world.waits(number):
            self._world.violated("a call closed the connection of another")
        self._is_closed = True
        self._loop.call_soon(self._connection.connection_lost, None)

    close = abort

    def is_closing(self) -> bool:
        return self._is_closed

    def get_write_buffer_size(self) -> int:
        return self._unsent


class PlayedTurns(Turns):
    """Now and then, a call is cancelled just when a turn is given on."""

    def __init__(self, world: World) -> None:
        super().__init__(TURNS)
        self._world = world

    def give_back(self) -> None:
        super().give_back()
        if self._world.rng.random() < 0.05:
            self._world.cancel_any()


class World:
    """The client, its callers, and the way to the servers."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.sent: Counter[int] = Counter()
        self.kinds: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.answered: set[int] = set()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._more: list[asyncio.Task[None]] = []
        self._violation: Violation | None = None
        self._client = DynamoClient(
            "http://hostile", "local", FixedCredentials(), SkewedClock(), TIMEOUT_S
        )
        self._client.turns = PlayedTurns(self)
        self._client._pool._way = self  # type: ignore[assignment]

    def violated(self, what: str) -> NoReturn:
        """Remember the first violation: the event loop would only log it."""
        self._violation = self._violation or Violation(what)
        raise self._violation

    async def connect(self, connection: Connection) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.05)))
        if self.rng.random() < 0.05:
            raise ConnectionRefusedError("refused")
        connection.connection_made(Wire(self, connection))

    def waits(self, number: int) -> bool:
        call = self._calls[number]
        return not call.done() and not call.cancelling()

    def cancel(self, number: int) -> None:
        self._calls[number].cancel()

    def cancel_any(self) -> None:
        running = [number for number, call in self._calls.items() if not call.done()]
        self.cancel(self.rng.choice(running))

    def begin_call(self) -> None:
        """Begin a call beside those of the callers."""
        number = CALLERS * CALLS + len(self._more)
        self._calls[number] = asyncio.ensure_future(self._call(number))
        self._more.append(self._calls[number])

    async def run(self) -> World:
        await asyncio.gather(*(self._caller(n) for n in range(CALLERS)))
        while any(not call.done() for call in self._more):
            await asyncio.wait(self._more)
        if self._client.turns._free != TURNS:
            self.violated("a turn was not given back")
        if self._client._pool.connections > TURNS:
            self.violated("there are more connections than turns")
        await self._client.close()
        if self._client._pool.connections:
            self.violated("a connection stayed open")
        if self._violation is not None:
            raise self._violation
        return self

    async def _caller(self, caller: int) -> None:
        for number in range(caller * CALLS, (caller + 1) * CALLS):
            call = self._calls[number] = asyncio.ensure_future(self._call(number))
            if self.rng.random() < 0.1:
                asyncio.get_running_loop().call_later(self.rng.random() / 10, call.cancel)
            await asyncio.wait([call])
            if not call.cancelled():
                call.result()
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.01, 20.0)))

    async def _call(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        started_s, outcome = loop.time(), "answered"
        operation = self.rng.choice(("GetItem", "PutItem"))
        try:
            answer = await self._client.call(operation, {"n": number})
        except HeatsinkError as error:
            outcome = type(error).__name__
            if number in self.answered:
                self.violated(f"a call failed though its answer had come: {error}")
        else:
            if answer.body != {"n": number}:
                self.violated(f"call {number} got the answer {answer.body}")
            if answer.store_ms == EARLY_MS:
                self.violated("a call got the date of an interim answer")
            if number not in self.answered:
                self.violated("a call succeeded without a complete answer")
        self.outcomes[outcome] += 1
        if loop.time() - started_s > TIMEOUT_S + LATE_S:
            self.violated("a call went on after its deadline")


def simulate(seed: int) -> World:
    async def play() -> World:
        return await World(seed).run()

    return run_on_virtual_time(play())
