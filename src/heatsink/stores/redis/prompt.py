"""A client of one Redis server that spends little time on each command.

redis-py finds a connection in its pool, checks it, packs the command in Python and waits under
several timers: for a short command this costs more than Redis does. `PromptRedis` is a subclass of
redis-py's client that sends commands in another way: it packs and parses them with hiredis, and a
call waits for one future and one timer. Everything else, such as subscriptions, works as in
redis-py.

A *line* is a connection. A call has a line of its own, since a command such as WAITAOF blocks all
later commands on its connection. Lines that are not in use wait for the next call. If a caller is
cancelled, another call may use its line as soon as the replies have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from ssl import SSLContext, create_default_context
from typing import Any

import hiredis
from redis import exceptions
from redis._parsers.base import BaseParser
from redis.asyncio import Redis

from .address import RedisAddress

Command = tuple[Any, ...]
CONNECT_S = 1.0
_NO_REPLY = object()


class PromptRedis(Redis):
    """A client for the server at `address`. `options` are redis-py's own."""

    def __init__(self, address: RedisAddress, **options: Any) -> None:
        (self._host, self._port), *_ = address.hosts
        super().__init__(host=self._host, port=self._port, db=address.database, **options)
        self._address = address
        self._tls = _context(address)
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        (reply,) = await self.run([words])
        if isinstance(reply, Exception):
            raise reply
        return self.parsed(words, reply, options)

    def pipeline(self, transaction: bool | None = None, shard_hint: str | None = None) -> Any:
        """Return a pipeline; one that is a transaction comes from redis-py."""
        return super().pipeline(True, shard_hint) if transaction else _Pipeline(self)

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together on one connection. Returns the raw replies; some may be errors."""
        line = self._idle.pop() if self._idle else await self._connect()
        self._busy.add(line)
        return await line.call(commands, self._address.options.timeout_s)

    def parsed(self, words: Command, reply: Any, options: dict[str, Any]) -> Any:
        """Return a raw reply as redis-py's own client would return it."""
        callback = self.response_callbacks.get(words[0])
        return callback(reply, **options) if callback else reply

    def freed(self, line: _Line, is_open: bool) -> None:
        """Take note that a call on this line has ended, or that its connection has.

        If the connection is open, keep the line for other calls. A line that is still logging in is
        not busy, and is not kept here.
        """
        if is_open and line in self._busy:
            self._idle.append(line)
        elif not is_open and line in self._idle:
            self._idle.remove(line)
        self._busy.discard(line)

    async def listen(
        self, channels: Sequence[str], hear: Callable[[bytes], None], silent_s: float
    ) -> None:
        """Subscribe to channels and call `hear` with each message, until the connection breaks.

        After `silent_s` without a message, ping the server. If there is no reply within `silent_s`,
        raise `TimeoutError`.
        """
        line = await self._connect()
        try:
            await line.listen(channels, hear, silent_s)
        finally:
            line.close()

    async def _connect(self) -> _Line:
        loop, where = asyncio.get_running_loop(), f"{self._host}:{self._port}"
        line = _Line(self, where)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: line, self._host, self._port, ssl=self._tls)
        except TimeoutError:
            raise exceptions.TimeoutError(f"Timeout connecting to {where}") from None
        except OSError as error:
            raise exceptions.ConnectionError(f"Error connecting to {where}: {error}") from error
        try:
            await self._log_in(line)
        except BaseException:
            line.close()
            raise
        return line

    async def _log_in(self, line: _Line) -> None:
        address, commands = self._address, list[Command]()
        if address.user or address.password:
            user = (address.user,) if address.user else ()
            commands.append(("AUTH", *user, address.password))
        if address.database:
            commands.append(("SELECT", address.database))
        if not commands:
            return
        for reply in await line.call(commands, address.options.timeout_s):
            if isinstance(reply, Exception):
                raise reply

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Wait for the calls that run, and close all connections."""
        await asyncio.gather(*(line.ended() for line in list(self._busy)))
        for line in [*self._idle, *self._busy]:
            line.close()
        await super().aclose(close_connection_pool)


class _Pipeline:
    def __init__(self, driver: PromptRedis) -> None:
        self._driver = driver
        self._commands: list[Command] = []

    def execute_command(self, *words: Any) -> None:
        self._commands.append(words)

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        found = await self._driver.run(self._commands)
        replies = []
        for words, reply in zip(self._commands, found, strict=True):
            if not isinstance(reply, Exception):
                replies.append(self._driver.parsed(words, reply, {}))
            elif raise_on_error:
                raise reply
            else:
                replies.append(reply)
        return replies


class _Line(asyncio.Protocol):
    """A connection, on which one call runs at a time."""

    def __init__(self, driver: PromptRedis, where: str) -> None:
        self._driver = driver
        self._where = where
        self._transport: Any = None
        self._reader = hiredis.Reader(
            protocolError=exceptions.InvalidResponse,
            replyError=BaseParser.parse_error,
            notEnoughData=_NO_REPLY,
        )
        self._replies: list[Any] = []
        self._lacking = 0
        self._answer: asyncio.Future[list[Any]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._hear: Callable[[bytes], None] | None = None
        self._is_silent = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def call(self, commands: Sequence[Command], timeout_s: float) -> list[Any]:
        """Send commands and return their replies. Raises `ConnectionError` and `TimeoutError`."""
        loop = asyncio.get_running_loop()
        packed = b"".join([_packed(words) for words in commands])
        self._replies, self._lacking = [], len(commands)
        answer: asyncio.Future[list[Any]] = loop.create_future()
        self._answer = answer
        self._timer = loop.call_later(timeout_s, self._time_out)
        self._transport.write(packed)
        return await answer

    async def listen(
        self, channels: Sequence[str], hear: Callable[[bytes], None], silent_s: float
    ) -> None:
        self._hear = hear
        broken = self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(_packed(("SUBSCRIBE", *channels)))
        was_silent = False
        try:
            while True:
                self._is_silent = True
                if (await asyncio.wait({broken}, timeout=silent_s))[0]:
                    broken.result()
                if self._is_silent and was_silent:
                    raise exceptions.TimeoutError(f"Timeout reading from {self._where}")
                was_silent = self._is_silent
                if was_silent:
                    self._transport.write(_packed(("PING",)))
        finally:
            self._answer = None
            if broken.done():
                broken.exception()  # else asyncio logs it, if the caller was cancelled

    def _hear_all(self) -> None:
        """Pass on the messages that have come. Other replies only show that the server lives."""
        assert self._hear is not None
        while (reply := self._reader.gets()) is not _NO_REPLY:
            self._is_silent = False
            if isinstance(reply, Exception):
                self._fail(reply)
            elif reply[0] == b"message":
                self._hear(reply[2])

    async def ended(self) -> None:
        """Wait until the call that runs has ended."""
        if self._answer is not None:
            await asyncio.wait({self._answer})

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            if self._hear is not None:
                self._hear_all()
                return
            while self._lacking:
                reply = self._reader.gets()
                if reply is _NO_REPLY:
                    return
                self._replies.append(reply)
                self._lacking -= 1
        except exceptions.InvalidResponse as error:
            self._fail(exceptions.ConnectionError(f"{self._where} is no Redis server: {error}"))
            return
        if self._answer is None:
            return
        answer = self._end()
        self._driver.freed(self, is_open=True)
        if not answer.done():
            answer.set_result(self._replies)

    def _end(self) -> asyncio.Future[list[Any]]:
        assert self._answer is not None
        answer, self._answer = self._answer, None
        if self._timer is not None:
            self._timer.cancel()
        return answer

    def connection_lost(self, _error: Exception | None) -> None:
        self._fail(exceptions.ConnectionError("Connection closed by server."))

    def _time_out(self) -> None:
        self._fail(exceptions.TimeoutError(f"Timeout reading from {self._where}"))

    def _fail(self, error: Exception) -> None:
        self._driver.freed(self, is_open=False)
        self._transport.abort()
        if self._answer is not None:
            answer = self._end()
            if not answer.done():
                answer.set_exception(error)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _packed(words: Command) -> bytes:
    """Encode a command. redis-py writes some names in two words, such as `CONFIG GET`."""
    if " " in words[0]:
        words = (*words[0].split(), *words[1:])
    try:
        return bytes(hiredis.pack_command(words))
    except TypeError:  # it takes no types derived from int or bytes
        return bytes(hiredis.pack_command(tuple(_plain(word) for word in words)))


def _plain(word: Any) -> Any:
    if isinstance(word, int):
        return int(word)
    return bytes(word) if isinstance(word, bytearray | memoryview) else word


def _context(address: RedisAddress) -> SSLContext | None:
    if not address.tls:
        return None
    return create_default_context(cafile=address.options.ca or None)
