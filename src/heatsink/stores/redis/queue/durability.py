"""Durability of the queue in Redis: a submission is acknowledged only when it is on disk.

A *barrier* reads back what was submitted and waits until it is durable. A barrier is one pipeline
on one connection to one server: the reads, a tiny write, WAITAOF, WAIT and a check of the server
itself. The server runs these commands in this order. So once the tiny write is on disk, everything
that the reads returned is on disk too. A restart of the server breaks the connection. So if the
power fails during a barrier, the barrier fails, and a restarted server cannot confirm writes that
it has lost.

With `appendfsync always` a write is on disk when the server replies. With `everysec` WAITAOF should
wait for the next fsync, but many versions reply immediately (Redis 7.4 to 8, Valkey 8 to 9; see
redis#13793). So the barrier itself waits for the fsync. The server starts an fsync within a second
of the write, and INFO then shows how many fsyncs are pending. The barrier checks this number twice,
since it is zero for a moment between two fsyncs. If the append-only file was rewritten during the
barrier, the barrier waits again, for an fsync of the new file. A server without WAITAOF (before
7.2) must have `appendfsync always`.

WAIT does the same for replicas. The setting `replicas` is the number of replicas that have to
acknowledge. This number decides what a fail-over can lose:

- If every replica that may be promoted has acknowledged, a fail-over loses no accepted item. Set
  `replica-priority 0` on all other replicas.
- If fewer have acknowledged, a replica without the write may be promoted: Sentinel does not always
  choose the replica with the most data. Then Heatsink finds and names the lost items, and they can
  be restored.

By default all replicas that are connected at the time have to acknowledge. While a replica is down,
its acknowledgement is not required.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from redis import exceptions

from heatsink.bulk.batch import Batch, PartPlace
from heatsink.bulk.plan import PlaceClosed, PlaceMarks, QueuePlan, spot_of
from heatsink.bulk.store import PartCounts, ServerHealth
from heatsink.errors import HeatsinkError, InvalidSetting, Misconfigured, NoAccess, Unavailable
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock
from heatsink.stores.redis.address import RedisAddress
from heatsink.stores.redis.connection import (
    Connection,
    Word,
    is_final,
    open_driver,
    refusal_of,
)

from .homes import plan_of, record_of
from .keys import QueueKeys, QueuePlaces
from .queue import COUNTED, counts_of, short_counts_of

Durability = Literal["fsync", "relaxed"]
Read = tuple[str, tuple[Word, ...]]
"""The key of the tiny write, which is in the slot of the key to read, and the read command."""
FSYNC_MS = 5_000
EVERYSEC_S = 1.25  # a server starts the next fsync within 1 s; the rest is a margin
LOOK_S = 0.05
LOOKS_MAX = 100
PATIENCE_S = 6.0
MARK_MS = 60_000
PIPELINES_MAX = 4  # concurrent pipelines per server: later reads share the next one
TROUBLE = (exceptions.RedisError, OSError, TimeoutError)
CURE = (
    "set appendonly yes in its configuration (before version 7.2 also appendfsync always), or "
    "accept possible loss with BulkSettings(durability='relaxed') or --relaxed"
)
ABOUT = ("INFO", "server", "persistence", "replication")
REWRITE = ("aof_rewrites", "aof_rewrite_in_progress", "aof_base_size")  # change with the log file
PINGS = 3  # the fastest one is reported: the others may have waited in this process


class RedisBarrier:
    """Reads parts and batch records, and returns them once they are durable.

    With `durability="relaxed"` it does not wait.
    """

    def __init__(
        self,
        places: QueuePlaces,
        keys: QueueKeys,
        clock: Clock,
        durability: Durability = "fsync",
        replicas: int | None = None,
    ) -> None:
        if durability not in get_args(Durability):
            raise InvalidSetting(
                f"durability must be 'fsync' or 'relaxed', not {shown(durability)}",
                field="durability",
            )
        self._places = places
        self._keys = keys
        self._clock = clock
        self._asks = durability == "fsync"
        self._replicas = replicas
        self._servers: dict[RedisAddress, _Server] = {}

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        reads: list[tuple[Connection, str, Read]] = []
        for place in places:
            mark = f"{self._keys.partition(place.partition)}synced"
            key = self._keys.part(place.partition, place.id)
            connection = self._places.connection(place.partition)
            reads.append((connection, key, (mark, self._keys.short(place.partition, place.id))))
            reads.append((connection, key, (mark, ("HMGET", key, *COUNTED))))
            meta = f"{self._keys.partition(place.partition)}meta"
            reads.append((connection, meta, (mark, ("HMGET", meta, "moved", "moved_to"))))
        found = await self._read(reads)
        for place, (moved, to) in zip(places, found[2::3], strict=True):
            if moved is not None and int(moved) >= spot_of(place.partition).since:
                raise PlaceClosed(place.partition, int(moved), (to or b"").decode())
        pairs = zip(found[::3], found[1::3], strict=True)
        return [short_counts_of(text) if text else counts_of(words) for text, words in pairs]

    async def place(self, partition: int, parts: Sequence[str] = ()) -> PlaceMarks:
        connection, root = self._places.connection(partition), self._keys.partition(partition)
        marks = ("HMGET", f"{root}meta", "moved", "moved_to", "prepared")
        reads: list[tuple[Connection, str, Read]] = [(connection, root, (f"{root}synced", marks))]
        for part in parts:
            words = ("HMGET", self._keys.part(partition, part), *COUNTED)
            reads.append((connection, root, (f"{root}synced", words)))
        (moved, to, prepared), *counts = await self._read(reads)
        whole = sum(counts_of(words) is not None for words in counts)
        return PlaceMarks(int(moved or -1), (to or b"").decode(), int(prepared or -1), whole)

    async def plan(self) -> QueuePlan | None:
        key = self._keys.fleet("plan")
        mark = self._keys.fleet("synced")
        (found,) = await self._read([(self._places.home, key, (mark, ("HGET", key, "record")))])
        return plan_of(found)

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        keys = [self._keys.batch(id) for id in ids]
        home = self._places.home
        reads = [(home, key, (f"{key}/synced", ("GET", key))) for key in keys]
        return [record_of(word) for word in await self._read(reads)]

    async def home(self, key: str, field: str) -> bytes | None:
        """Return a field of a hash at the queue's home."""
        reads = [(self._places.home, key, (f"{key}/synced", ("HGET", key, field)))]
        found: list[bytes | None] = await self._read(reads)
        return found[0]

    async def run(
        self, partition: int, words: tuple[Word, ...], published_first: bool = False
    ) -> Any:
        """Run a command on a partition. Return its reply after its writes are durable.

        The command gets a pipeline of its own: callers with many commands put them into one. With
        `published_first`, what the command publishes leaves the server before its reply.
        """
        root, connection = self._keys.partition(partition), self._places.connection(partition)
        (node,) = await connection.nodes(f"{root}meta")
        return await self._server(node).run((f"{root}synced", words), published_first)

    async def _read(self, reads: Sequence[tuple[Connection, str, Read]]) -> list[Any]:
        """Run all reads, each on its server. Returns the replies in the order of the reads."""
        by_node: dict[RedisAddress, list[int]] = {}
        for number, (connection, key, _) in enumerate(reads):
            (node,) = await connection.nodes(key)
            by_node.setdefault(node, []).append(number)
        calls = (
            self._server(node).read([reads[number][2] for number in numbers])
            for node, numbers in by_node.items()
        )
        answers: dict[int, Any] = {}
        for numbers, found in zip(by_node.values(), await asyncio.gather(*calls), strict=True):
            answers.update(zip(numbers, found, strict=True))
        return [answers[number] for number in range(len(reads))]

    def _server(self, node: RedisAddress) -> _Server:
        if node not in self._servers:
            self._servers[node] = _Server(node, self._clock, self._asks, self._replicas)
        return self._servers[node]

    async def verify(self) -> None:
        """Raise `Misconfigured` if the home's server cannot confirm that a write is on disk.

        A server that holds other partitions is verified before its first barrier.
        """
        await self._verify(self._places.home)

    async def _verify(self, connection: Connection) -> None:
        await connection.run("PING")
        for node in await connection.nodes() if self._asks else []:
            await self._server(node).verify()
            await self._server(node).verify_room()

    async def close(self) -> None:
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await server.close()


class _Server:
    """Runs barriers on one server. Reads that arrive during a barrier share the next barrier."""

    def __init__(self, node: RedisAddress, clock: Clock, asks: bool, replicas: int | None) -> None:
        self._node = node
        self._clock = clock
        self._asks = asks
        self._replicas = replicas
        self._connected = 0  # replicas at the last check
        self._driver: Any = open_driver(node.patient(PATIENCE_S))
        self._syncs_itself: bool | None = None
        self._waiting: list[tuple[list[Read], asyncio.Future[list[Any]]]] = []
        self._pipelines: set[asyncio.Task[None]] = set()
        self._serving = 0  # pipelines that look at `_waiting` again: a task is done only later

    async def read(self, reads: list[Read]) -> list[Any]:
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((reads, answer))
        if self._serving < PIPELINES_MAX:
            self._serving += 1
            task = asyncio.ensure_future(self._serve())
            self._pipelines.add(task)
            task.add_done_callback(self._pipelines.discard)
        return await answer

    async def run(self, read: Read, published_first: bool) -> Any:
        """Run one command at once, without other reads.

        Redis writes first to the connection that got its first reply last. If a PING precedes the
        command, that is a connection to which the command publishes, and not this one.
        """
        before: list[Read] = [(read[0], ("PING",))] if published_first else []
        *_, answer = await self._confirmed([*before, read])
        if isinstance(answer, Exception):
            raise refusal_of(answer, f"Redis at {self._node}", str(read[1][0]))
        return answer

    async def _serve(self) -> None:
        try:
            while self._waiting:
                await self._serve_all()
        finally:
            self._serving -= 1

    async def _serve_all(self) -> None:
        taken, self._waiting = self._waiting, []
        try:
            found = await self._confirmed([read for reads, _ in taken for read in reads])
        except Exception as error:  # any error goes to the waiting callers
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(error)
            return
        for reads, answer in taken:
            mine, found = found[: len(reads)], found[len(reads) :]
            errors = [one for one in mine if isinstance(one, Exception)]
            if answer.done():
                continue
            if errors:
                where, (_, words) = f"Redis at {self._node}", reads[0]
                answer.set_exception(refusal_of(errors[0], where, str(words[0])))
            else:
                answer.set_result(mine)

    async def _confirmed(self, reads: list[Read]) -> list[Any]:
        if self._asks and self._syncs_itself is None:
            await self.verify()
            await self.verify_room()
        while True:
            wanted = self._connected if self._replicas is None else self._replicas
            found, acknowledged = await self._pipeline(reads, wanted)
            needed = self._connected if self._replicas is None else self._replicas
            if acknowledged >= needed or not self._asks:
                return found
            if wanted >= needed:
                raise Unavailable(
                    f"{acknowledged} of {needed} replicas of Redis at {self._node} acknowledged "
                    f"within {FSYNC_MS} ms: retry later, or lower the number of replicas that must "
                    "acknowledge with BulkSettings(replicas=…) or --replicas"
                )

    async def _pipeline(self, reads: list[Read], wanted: int) -> tuple[list[Any], int]:
        """Run one barrier, in which WAIT waits for `wanted` replicas.

        Returns the replies to `reads`, and the number of replicas that have acknowledged.
        """
        pipeline = self._driver.pipeline(transaction=False)
        for _, words in reads:
            pipeline.execute_command(*words)
        if self._asks:
            pipeline.execute_command("SET", reads[0][0], 1, "PX", MARK_MS)
            if not self._syncs_itself:
                pipeline.execute_command("WAITAOF", 1, 0, FSYNC_MS)
            if wanted:
                pipeline.execute_command("WAIT", wanted, FSYNC_MS)
            pipeline.execute_command("CONFIG", "GET", "appendfsync")
            pipeline.execute_command(*ABOUT)
        try:
            answers = await pipeline.execute(raise_on_error=False)
        except TROUBLE as error:
            raise _unsure(self._node, error) from None
        found, rest = answers[: len(reads)], answers[len(reads) :]
        if not self._asks:
            self._check(found)
            return found, 0
        about, mode = rest.pop(), rest.pop()
        self._check(found, [*rest, about])
        if not self._syncs_itself and not rest[1][0]:
            raise self._slow()
        self._note_replicas(about)
        if not _is_always(mode):
            await self._outwait(about)
        return found, int(rest[-1]) if wanted else 0

    def _check(self, found: Sequence[Any], rest: Sequence[Any] = ()) -> None:
        """Raise if an error makes the whole barrier fail, for all waiting callers.

        `found` are the replies to the reads, `rest` those to the barrier's own commands. A read
        that Redis refused fails alone, later.
        """
        troubles = [one for one in found if isinstance(one, Exception) and not is_final(one)]
        troubles += [one for one in rest if isinstance(one, Exception)]
        if troubles:
            raise _unsure(self._node, troubles[0]) from None

    def _note_replicas(self, about: Mapping[str, Any]) -> None:
        if about["role"] != "master":
            raise Unavailable(f"Redis at {self._node} is no longer the primary: retry later")
        self._connected = int(about["connected_slaves"])

    async def _outwait(self, about: Mapping[str, Any]) -> None:
        """Wait until an fsync has ended that began after the barrier: then all its data is on disk.

        `about` is the server's reply to INFO at the end of the barrier. Raises `Unavailable` if the
        server restarted or the fsync takes too long.
        """
        began = about
        await self._clock.sleep(EVERYSEC_S)
        for _ in range(LOOKS_MAX):
            looks = [await self._about(), await self._about()]
            if any(look["run_id"] != began["run_id"] for look in looks):
                raise Unavailable(f"Redis at {self._node} restarted during the fsync: retry later")
            if not all(look["aof_enabled"] and _is_ok(look) for look in looks):
                raise self._slow()
            if any(look[name] != began[name] for look in looks for name in REWRITE):
                began = looks[-1]
                await self._clock.sleep(EVERYSEC_S)
            elif not any(look["aof_pending_bio_fsync"] for look in looks):
                return
            else:
                await self._clock.sleep(LOOK_S)
        raise self._slow()

    async def _about(self) -> Mapping[str, Any]:
        try:
            about: Mapping[str, Any] = await self._driver.execute_command(*ABOUT)
        except TROUBLE as error:
            raise _unsure(self._node, error) from None
        return about

    def _slow(self) -> Unavailable:
        return Unavailable(
            f"Redis at {self._node} took more than {FSYNC_MS} ms to fsync: retry later, "
            "and check the server's disk"
        )

    async def verify_room(self) -> None:
        """Raise `Misconfigured` if the server evicts keys when it is full.

        Such a server could evict accepted work.
        """
        try:
            about = await self._driver.info("memory")
        except exceptions.ResponseError:
            return  # the Redis user may not run INFO
        except TROUBLE as error:
            raise _unsure(self._node, error) from None
        if about.get("maxmemory") and about.get("maxmemory_policy") != "noeviction":
            raise Misconfigured(
                f"Redis at {self._node} may evict accepted work when it is full: "
                "set maxmemory-policy noeviction"
            )

    async def verify(self) -> None:
        """Find out how this server confirms an fsync. Raise `Misconfigured` if it cannot."""
        try:
            await self._driver.execute_command("WAITAOF", 1, 0, 1)
            self._syncs_itself = False
        except exceptions.ResponseError as error:
            unknown = "unknown command" in str(error).lower()
            if not unknown or not await self._fsyncs_always():
                raise Misconfigured(
                    f"Redis at {self._node} cannot confirm that a write is on disk: {CURE}"
                ) from None
            self._syncs_itself = True
        except TROUBLE as error:
            raise _unsure(self._node, error) from None

    async def _fsyncs_always(self) -> bool:
        try:
            ask = self._driver.config_get
            found = {**await ask("appendonly"), **await ask("appendfsync")}
        except exceptions.ResponseError:
            return False
        return found == {"appendonly": "yes", "appendfsync": "always"}

    async def close(self) -> None:
        for task in list(self._pipelines):
            task.cancel()
        await asyncio.gather(*self._pipelines, return_exceptions=True)
        for _, answer in self._waiting:
            answer.cancel()
        await self._driver.aclose()


def _is_always(mode: Any) -> bool:
    """Return whether appendfsync is `always`.

    If the Redis user may not read the setting, assume `everysec`.
    """
    return isinstance(mode, list) and b"always" in mode


def _is_ok(about: Mapping[str, Any]) -> bool:
    return bool(about["aof_last_write_status"] == "ok")


def _unsure(node: RedisAddress, error: Exception) -> HeatsinkError:
    if isinstance(error, exceptions.AuthenticationError):
        return NoAccess(
            f"Redis at {node} refuses the user or the password: check the URL of the queue"
        )
    if isinstance(error, exceptions.ConnectionError | OSError):
        return Unavailable(
            f"Redis at {node} cannot be reached: start it, or check the URL of the queue"
        )
    reason = type(error).__name__
    return Unavailable(f"Redis at {node} did not confirm its fsync ({reason}): retry later")


class Doctor:
    """Measures the health of each Redis of a queue: latency, CPU time and memory."""

    def __init__(self, places: QueuePlaces, clock: Clock) -> None:
        self._places = places
        self._clock = clock

    async def examine(self, partitions: Sequence[int]) -> list[ServerHealth]:
        by_address: dict[RedisAddress, list[int]] = {}
        for partition in partitions:
            by_address.setdefault(self._places.address(partition), []).append(int(partition))
        return list(
            await asyncio.gather(*(self._ask(a, tuple(held)) for a, held in by_address.items()))
        )

    async def _ask(self, address: RedisAddress, partitions: tuple[int, ...]) -> ServerHealth:
        connection = self._places.at(address)
        facts = await _info(connection)
        return ServerHealth(
            place=str(address),
            cpu_used_s=facts.get("used_cpu_sys", 0.0) + facts.get("used_cpu_user", 0.0),
            memory=int(facts.get("used_memory", 0)),
            memory_max=int(facts.get("maxmemory", 0)),
            latency_ms=min([await self._ping_ms(connection) for _ in range(PINGS)]),
            partitions=partitions,
        )

    async def _ping_ms(self, connection: Connection) -> float:
        began_s = self._clock.monotonic_s()
        await connection.run("PING")
        return (self._clock.monotonic_s() - began_s) * 1000


async def _info(connection: Connection) -> dict[str, float]:
    """Return the numbers in INFO. For a cluster, each is the highest among the nodes."""
    found: dict[str, float] = {}
    for section in ("cpu", "memory"):
        answer = await connection.run("INFO", section)
        nodes = answer.values() if _is_by_node(answer) else [answer]
        for node in nodes:
            for name, value in node.items():
                if isinstance(value, int | float):
                    found[name] = max(found.get(name, 0.0), float(value))
    return found


def _is_by_node(answer: dict[str, object]) -> bool:
    return any(isinstance(value, dict) for value in answer.values())
