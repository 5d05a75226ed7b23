"""Messages between processes over Redis: registry news, soft decisions, forgotten keys.

All these messages may be lost. If news is lost, processes read the registry from the data store.
Leaders repeat soft decisions. A process that may have missed forgotten keys drops its cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any

import msgspec
from redis import exceptions

from heatsink.errors import HeatsinkError, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.reads.invalidation import Ear
from heatsink.registry.decisions import Decision, SoftDecision
from heatsink.registry.news import Polls, pushed_s

from .address import RedisAddress, RedisKeys
from .connection import Connection, RedisRefused, open_driver
from .heat import order_of

ENTRIES_MAX = 1_000
REPEAT_S = 5.0  # an unchanged notice is pushed again after this time
PATIENCE = 50  # polls without a push; from then on, a process polls more slowly
POLL_S = 0.5  # the time between such slow polls
PAIR_POLLS_S = 1_000.0  # polls for the pair per second, of the whole fleet without pushes
SOFT_POLLS_S = 500.0  # the same for soft decisions; each takes two commands
PINGS_S = 2_000.0  # pings per second, of all subscriptions without messages together
FORGET_S = 86_400
DECISIONS_MAX = 10_000
READ_MAX = 1_000
SKIPS_MAX = 60  # reads of soft decisions that pushes answer, before the stream is read again
_SOFT = msgspec.msgpack.Decoder(SoftDecision)
PING_S = 1.0
SILENCE_S = 3.0
NOTHING = b""
TROUBLE = (exceptions.RedisError, OSError, TimeoutError, RuntimeError)


class _Push(msgspec.Struct, frozen=True, array_like=True):
    """A message on the channel of news: the pair (closed time and version of the registry).

    It contains the leader's notice only if the notice is new. A message with soft decisions has
    no pair.
    """

    pair: bytes = b""
    log: str = ""
    entries: Annotated[dict[int, bytes], msgspec.Meta(max_length=ENTRIES_MAX)] = {}
    soft: Annotated[list[SoftDecision], msgspec.Meta(max_length=DECISIONS_MAX)] = []


_PUSH = msgspec.msgpack.Decoder(_Push)


class RedisNews:
    """Carries registry news. One value holds the pair, and a stream holds the log.

    The leader also pushes news to all subscribers (`RedisWire` listens). So while its subscription
    works, a process sends Redis no queries: `pair` and `entries` answer from memory. Without
    pushes, they query Redis. In a large fleet, all processes together do so only about
    `PAIR_POLLS_S` times a second: when a leader has died, all of them miss its pushes, and Redis
    must be able to serve the next leader. The leader pushes a notice when the notice is new, and
    again every few seconds.

    The ids in the stream are versions, so Redis itself rejects duplicate entries and late writes of
    a deposed leader. The pair is one value, so a reader never sees closed time and version from
    different moments. The pair and the entries are signed, so readers detect forgeries
    (`registry.news`).
    """

    def __init__(
        self,
        connection: Connection,
        keys: RedisKeys,
        clock: Clock,
        leading: Connection | None = None,
        rng: Random | None = None,
    ) -> None:
        """`leading` is the connection of a leader, which has more time: see `with_redis`."""
        self.servers = 1
        """The size of the fleet, as this process last heard it."""
        self._run = connection.run
        self._tell = (leading or connection).run
        self._keys = keys
        self._clock = clock
        self._told_notice = b""
        self._told_s = float("-inf")
        self._pair: bytes | None = None
        self._notice = b""
        self._pushed_s = float("-inf")
        self._unpushed = 0  # polls since the last push
        self._polls = Polls(clock, rng or Random(), PAIR_POLLS_S)
        self._failure: HeatsinkError | None = None  # of the last poll
        self._pushed: dict[str, dict[int, bytes]] = {}
        self.soft: deque[SoftDecision] = deque(maxlen=DECISIONS_MAX)
        """Soft decisions that were pushed and not read yet."""

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        for version, entry in entries.items():
            await self._add(self._keys.log(log), version, entry)
        if entries:
            await self._tell("EXPIRE", self._keys.log(log), FORGET_S)
        await self._tell("SET", self._keys.pair, pair)
        bare, _, notice = pair.partition(b"\n")
        now_s = self._clock.monotonic_s()
        if notice != self._told_notice or now_s - self._told_s >= REPEAT_S:
            self._told_notice, self._told_s, bare = notice, now_s, pair
        push = _Push(bare, log, dict(list(entries.items())[-ENTRIES_MAX:]))
        await self._tell("PUBLISH", self._keys.news, msgspec.msgpack.encode(push))

    async def _add(self, log: str, version: int, entry: bytes) -> None:
        cap = ("MAXLEN", "~", ENTRIES_MAX)
        try:
            await self._tell("XADD", log, *cap, f"{version}-0", "e", entry)
        except RedisRefused as refused:
            if refused.code != "OLDER":
                raise

    def hear(self, message: bytes) -> None:
        """Take in a push of the leader. Later readers check the signature before they trust it."""
        try:
            push = _PUSH.decode(message)
        except msgspec.MsgspecError:
            return
        self.soft.extend(push.soft)
        if not push.pair:
            return
        self._take(push.pair)
        self._pushed_s, self._unpushed = self._clock.monotonic_s(), 0
        self._failure = None
        self._polls.rest()
        if push.entries:
            known = self._pushed.get(push.log, {}) | push.entries
            kept = sorted(known)[-ENTRIES_MAX:]
            self._pushed = {push.log: {version: known[version] for version in kept}}

    def _take(self, pair: bytes) -> None:
        """Remember a pair that the leader pushed. If it has no notice, the last notice stays."""
        bare, line, notice = pair.partition(b"\n")
        self._notice = notice if line else self._notice
        self._pair = b"%b\n%b" % (bare, self._notice) if self._notice else bare

    @property
    def is_pushed(self) -> bool:
        """Whether the leader's pushes arrive, so that this process need not ask."""
        return self._clock.monotonic_s() - self._pushed_s < pushed_s(self.servers)

    async def pair(self, servers: int = 1, /) -> bytes | None:
        self.servers = servers
        if self.is_pushed:
            return self._pair
        if not self._polls.is_due(servers, POLL_S if self._unpushed >= PATIENCE else 0.0):
            if self._failure is not None:
                raise self._failure.with_traceback(None)  # or it would grow at each raise
            return self._pair
        self._unpushed += 1
        try:
            found: bytes | None = await self._run("GET", self._keys.pair)
        except HeatsinkError as error:
            self._failure = error
            raise
        self._failure = None
        if found is None:
            self._pair = None
        else:
            self._notice = b""
            self._take(found)
        return self._pair

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        pushed = self._pushed.get(log, {})
        if all(version in pushed for version in range(after + 1, upto + 1)):
            return [pushed[version] for version in range(after + 1, upto + 1)]
        span = (f"{after + 1}-0", f"{upto}-0")
        found = await self._run("XRANGE", self._keys.log(log), *span, "COUNT", ENTRIES_MAX)
        return [fields[1] for _, fields in found]


class RedisSoft:
    """Soft decisions on a stream of limited length. Each reader remembers its own position.

    With `news`, soft decisions are also pushed, like news. While pushes arrive, the stream is read
    only now and then. Without `news`, as in the queue, nobody listens for pushes.
    """

    def __init__(
        self,
        connection: Connection,
        keys: RedisKeys,
        news: RedisNews | None = None,
        polls: Polls | None = None,
    ) -> None:
        """`polls` says when to read the stream while no pushes arrive; by default at each call."""
        self._run = connection.run
        self._keys = keys
        self._news = news
        self._polls = polls
        self._skipped = SKIPS_MAX
        self._last = b"0-0"

    async def publish(self, decisions: Sequence[Decision], term: int) -> None:
        soft = [SoftDecision(term, decision) for decision in decisions]
        for each in soft:
            body = msgspec.msgpack.encode(each)
            await self._run("XADD", self._keys.soft, "MAXLEN", "~", DECISIONS_MAX, "*", "d", body)
        if self._news is None:
            return
        for first in range(0, len(soft), READ_MAX):
            push = _Push(soft=soft[first : first + READ_MAX])
            await self._run("PUBLISH", self._keys.news, msgspec.msgpack.encode(push))

    async def read(self) -> list[SoftDecision]:
        read: list[SoftDecision] = []
        if self._news is not None:
            while self._news.soft:
                read.append(self._news.soft.popleft())
            if not self._should_ask(self._news):
                return read
        await self._notice_a_wipe()
        while found := await self._next():
            self._last = found[-1][0]
            read += [soft for _, fields in found if (soft := _decoded(fields)) is not None]
        return read

    def _should_ask(self, news: RedisNews) -> bool:
        self._skipped += 1
        if self._skipped <= SKIPS_MAX:
            if news.is_pushed:
                if self._polls is not None:
                    self._polls.rest()
                return False
            if self._polls is not None and not self._polls.is_due(news.servers):
                return False
        self._skipped = 0
        return True

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
        if not newest or order_of(newest[0][0]) < order_of(self._last):
            self._last = b"0-0"


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
    """Sends and receives forgotten keys over pub/sub, and receives the leader's news.

    A process has one subscription, for both channels.

    `listen` raises `Unavailable` when its subscription breaks. A subscription without messages
    looks like a subscription whose connection is dead. So after a second without a message,
    `listen` pings Redis, and raises after 3 s without a reply. While a leader pushes news, no ping
    is needed. In a fleet of more than `PINGS_S` processes, pings come later, so that a fleet
    without a leader does not burden Redis with them.
    """

    def __init__(
        self,
        connection: Connection,
        address: RedisAddress,
        keys: RedisKeys,
        clock: Clock,
        rng: Random,
        news: RedisNews | None = None,
    ) -> None:
        self._connection = connection
        self._address = address
        self._channel = keys.forgotten
        self._news_channel = keys.news
        self._news = news
        self._clock = clock
        self._rng = rng
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
            channels = (self._channel, self._news_channel)
            await asyncio.wait_for(pubsub.subscribe(*channels), SILENCE_S)
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
        ping_s = self._ping_s()
        while True:
            message = await pubsub.get_message(timeout=PING_S)
            now_s = self._clock.monotonic_s()
            if message is not None:
                heard_s, ping_s = now_s, self._ping_s()
                self._take(message, ear)
            if now_s - heard_s > ping_s + SILENCE_S - PING_S:
                raise TimeoutError
            if now_s - max(heard_s, pinged_s) >= ping_s:
                pinged_s = now_s
                await pubsub.ping()

    def _ping_s(self) -> float:
        """Return after how many seconds without a message to ping Redis."""
        servers = self._news.servers if self._news else 1
        return max(PING_S, self._rng.uniform(0.5, 1.5) * servers / PINGS_S)

    def _take(self, message: dict[str, Any], ear: Ear) -> None:
        channel = message["channel"]
        if message["type"] == "subscribe" and channel == self._channel.encode():
            ear.linked()
        if message["type"] != "message":
            return
        if channel == self._news_channel.encode():
            if self._news is not None:
                self._news.hear(message["data"])
            return
        try:
            heard = _MESSAGE.decode(message["data"])
        except msgspec.MsgspecError:
            return  # not sent by Heatsink: any client of this Redis may publish
        if heard.sender != self._name:
            ear.heard(heard.keys)
