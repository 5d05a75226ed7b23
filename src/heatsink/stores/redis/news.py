"""Messages between processes over Redis: registry news, soft decisions, forgotten keys.

All these messages may be lost. If news is lost, processes read the registry from the data store.
Leaders repeat soft decisions. A process that may have missed forgotten keys drops its cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any

import msgspec
from redis import exceptions

from heatsink.errors import Unavailable
from heatsink.primitives.clock import Clock
from heatsink.reads.invalidation import Ear
from heatsink.registry.decisions import Decision, SoftDecision

from .address import RedisAddress, RedisKeys
from .connection import Connection, Refused, open_driver

ENTRIES_MAX = 1_000
FORGET_S = 86_400
DECISIONS_MAX = 10_000
READ_MAX = 1_000
_SOFT = msgspec.msgpack.Decoder(SoftDecision)
PING_S = 1.0
SILENCE_S = 3.0
NOTHING = b""
TROUBLE = (exceptions.RedisError, OSError, TimeoutError, RuntimeError)


class RedisNews:
    """Carries registry news. One value holds the pair, and a stream holds the log.

    The ids in the stream are versions, so Redis itself rejects duplicate entries and late writes of
    a deposed leader. The pair is one value, so a reader never sees closed time and version from
    different moments. The pair and the entries are signed, so readers detect forgeries
    (`registry.news`).
    """

    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self._run = connection.run
        self._keys = keys

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        for version, entry in entries.items():
            await self._add(self._keys.log(log), version, entry)
        if entries:
            await self._run("EXPIRE", self._keys.log(log), FORGET_S)
        await self._run("SET", self._keys.pair, pair)

    async def _add(self, log: str, version: int, entry: bytes) -> None:
        cap = ("MAXLEN", "~", ENTRIES_MAX)
        try:
            await self._run("XADD", log, *cap, f"{version}-0", "e", entry)
        except Refused as refused:
            if refused.code != "OLDER":
                raise

    async def pair(self) -> bytes | None:
        found: bytes | None = await self._run("GET", self._keys.pair)
        return found

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        span = (f"{after + 1}-0", f"{upto}-0")
        found = await self._run("XRANGE", self._keys.log(log), *span, "COUNT", ENTRIES_MAX)
        return [fields[1] for _, fields in found]


class RedisSoft:
    """Soft decisions on a stream of limited length. Each reader remembers its own position."""

    def __init__(self, connection: Connection, keys: RedisKeys) -> None:
        self._run = connection.run
        self._keys = keys
        self._last = b"0-0"

    async def publish(self, decisions: Sequence[Decision], term: int) -> None:
        for decision in decisions:
            body = msgspec.msgpack.encode(SoftDecision(term, decision))
            await self._run("XADD", self._keys.soft, "MAXLEN", "~", DECISIONS_MAX, "*", "d", body)

    async def read(self) -> list[SoftDecision]:
        await self._notice_a_wipe()
        read: list[SoftDecision] = []
        while found := await self._next():
            self._last = found[-1][0]
            read += [soft for _, fields in found if (soft := _decoded(fields)) is not None]
        return read

    async def _next(self) -> list[tuple[bytes, list[bytes]]]:
        start = b"(" + self._last
        found: list[tuple[bytes, list[bytes]]] = await self._run(
            "XRANGE", self._keys.soft, start, "+", "COUNT", READ_MAX
        )
        return found

    async def _notice_a_wipe(self) -> None:
        """If Redis was wiped, set this reader's position to the beginning of the stream.

        After a wipe the stream is empty, or its newest id is below the last id that was read.
        """
        newest = await self._run("XREVRANGE", self._keys.soft, "+", "-", "COUNT", 1)
        if not newest or _order(newest[0][0]) < _order(self._last):
            self._last = b"0-0"


def _order(id: bytes) -> tuple[int, int]:
    time_ms, _, sequence = id.partition(b"-")
    return int(time_ms), int(sequence)


def _decoded(fields: list[bytes]) -> SoftDecision | None:
    try:
        return _SOFT.decode(fields[1])
    except (msgspec.MsgspecError, IndexError):
        return None


class _Message(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    keys: Annotated[list[str], msgspec.Meta(max_length=10_000)]


_MESSAGE = msgspec.msgpack.Decoder(_Message)


class RedisWire:
    """Sends and receives forgotten keys over pub/sub.

    `listen` raises `Unavailable` when its subscription breaks. A subscription without messages
    looks like a subscription whose connection is dead. So `listen` pings Redis every second, and
    raises after 3 s without a reply.
    """

    def __init__(
        self,
        connection: Connection,
        address: RedisAddress,
        keys: RedisKeys,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._connection = connection
        self._address = address
        self._channel = keys.forgotten
        self._clock = clock
        self._name = f"{rng.getrandbits(64):016x}"

    async def send(self, keys: Sequence[str]) -> None:
        body = msgspec.msgpack.encode(_Message(self._name, list(keys)))
        await self._connection.run("PUBLISH", self._channel, body)

    async def listen(self, ear: Ear) -> None:
        try:
            await self._hear(ear)
        except TROUBLE as error:
            name = type(error).__name__
            raise Unavailable(
                f"the subscription at Redis {self._address} broke ({name}): it is being renewed"
            ) from None

    async def _hear(self, ear: Ear) -> None:
        driver: Any = open_driver(await self._home())
        pubsub = driver.pubsub()
        try:
            await asyncio.wait_for(pubsub.subscribe(self._channel), SILENCE_S)
            await self._take_messages(pubsub, ear)
        finally:
            await pubsub.aclose()
            await driver.aclose()

    async def _home(self) -> RedisAddress:
        """Return the server to subscribe at. In a cluster, this is the node that gets all messages.

        A new or recovering cluster loses messages that its nodes forward to each other. If another
        node has become the right one, the driver notices it when it publishes an empty message.
        """
        if self._address.kind != "cluster":
            return self._address
        await self._connection.run("PUBLISH", self._channel, NOTHING)
        (home,) = await self._connection.nodes(self._channel)
        return home

    async def _take_messages(self, pubsub: Any, ear: Ear) -> None:
        heard_s = pinged_s = self._clock.monotonic_s()
        while True:
            message = await pubsub.get_message(timeout=PING_S)
            now_s = self._clock.monotonic_s()
            if message is not None:
                heard_s = now_s
                self._take(message, ear)
            if now_s - heard_s > SILENCE_S:
                raise TimeoutError
            if now_s - pinged_s >= PING_S:
                pinged_s = now_s
                await pubsub.ping()

    def _take(self, message: dict[str, Any], ear: Ear) -> None:
        if message["type"] == "subscribe":
            ear.linked()
        if message["type"] != "message":
            return
        try:
            heard = _MESSAGE.decode(message["data"])
        except msgspec.MsgspecError:
            return  # not sent by Heatsink: any client of this Redis may publish
        if heard.sender != self._name:
            ear.heard(heard.keys)
