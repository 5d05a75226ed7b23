"""One seeded run: a fleet, its clients, an operator, and everything that can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any
from unittest.mock import patch
from uuid import UUID

from heatsink.emulator import adaptation
from heatsink.errors import HeatsinkError, InvalidInput, Retryable
from heatsink.primitives.clock import now_ms
from heatsink.primitives.hooks import Hooks
from heatsink.primitives.ids import Minter, Uuid7
from heatsink.registry import news as relay
from heatsink.registry import registry
from heatsink.registry.decisions import LogEntry, Meta, Reading
from heatsink.spread.log import Entry
from heatsink.testing import SkewedClock, run_on_virtual_time

from . import checks
from .backends import DynamoBackend, MakeBackend, MemoryBackend
from .history import Adds, Append, History, Outcome, Violation
from .nodes import Node
from .relay import UnreliableRedis

TROUBLE_S = 16.0
CALM_S = 8.0
KEYS = ("hot", "warm", "a#b%")
COUNTERS = ("likes", "hot")
BUFFERED = "views"
YEAR_S = 365 * 86_400.0
BRIEF_TTL_S = 5.0  # less than settings allow


class World:
    def __init__(self, seed: int, make_backend: MakeBackend, with_folds: bool) -> None:
        self.rng = Random(seed)
        self.history = History()
        self.audit = checks.RegistryAudit()
        self.truth_clock = SkewedClock()
        self.redis = UnreliableRedis(Random(seed))
        self.with_redis = has_redis(seed)
        relay = self.redis if self.with_redis else None
        self.backend = make_backend(seed, self, relay)
        self.app_servers = [self._node(f"app-{n}", False) for n in range(3)]
        self.coordinators = [self._node(f"coordinator-{n}", True) for n in range(2)]
        self.nodes = [*self.app_servers, *self.coordinators]
        self.redis.reach(self.nodes)
        self.with_folds = with_folds
        if with_folds:
            for node in self.nodes:
                node.token_ttl_s = BRIEF_TTL_S
        self.violation: Violation | None = None
        self.acts: list[asyncio.Task[None]] = []

    def _node(self, name: str, coordinates: bool) -> Node:
        return Node(name, self.backend.connect, coordinates, Random(self.rng.random()))

    async def run(self) -> History:
        self._skew_clocks()
        await self.backend.open()
        await asyncio.gather(*(node.start() for node in self.nodes))
        await self._live(TROUBLE_S)
        await self._calm_down()
        await self._final_checks()
        return self.history

    async def _live(self, seconds: float) -> None:
        workers = [asyncio.ensure_future(work) for work in self._workload()]
        await asyncio.sleep(seconds)
        await self._stop(workers)

    def _workload(self) -> list[Any]:
        redis = [self._forever(self.redis.make_trouble, 3.0)] if self.with_redis else []
        folds = [self._forever(self._fold, 0.5)] if self.with_folds else []
        return [
            *redis,
            *folds,
            self._forever(self._append, 0.04),
            self._forever(self._read, 0.5),
            self._forever(self._read, 0.5),
            self._forever(self._get, 0.3),
            self._forever(self._add, 0.2),
            self._forever(self._add_with_token, 0.3),
            self._forever(self._count_buffered, 3.0),
            self._forever(self._value, 0.5),
            self._forever(self._delete, 1.5),
            self._forever(self._operate, 0.6),
            self._forever(self._make_trouble, 0.7),
        ]

    async def _stop(self, workers: list[asyncio.Task[None]]) -> None:
        acts, self.acts = self.acts, []
        for worker in [*workers, *acts]:
            worker.cancel()
        for result in await asyncio.gather(*workers, *acts, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        if self.violation:
            raise self.violation

    async def _forever(self, act: Callable[[], Awaitable[None]], pause_s: float) -> None:
        """Start an act now and then, also while earlier ones are stuck on a stalled process."""
        while self.violation is None:
            await asyncio.sleep(self.rng.expovariate(1 / pause_s))
            task = asyncio.ensure_future(act())
            self.acts.append(task)

    def _pick_node(self) -> Node | None:
        up = [node for node in self.app_servers if node.client is not None]
        return self.rng.choice(up) if up else None

    async def _attempt(self, node: Node, act: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run on a node; errors of ours are noted and returned, any other error is a bug."""
        client = node.client
        if client is None:
            return Retryable("the node is down")
        try:
            return await node.run(_as_coroutine(act(client)))
        except HeatsinkError as error:
            self.history.note_error(error)
            return error
        except asyncio.CancelledError:
            if node.client is client:
                raise
            return Retryable("the node crashed")

    async def _append(self) -> None:
        """Append through one server, and after an error through others, with the same id."""
        node = self._pick_node()
        if node is None:
            return
        append = self.history.new_append(self.rng.choices(KEYS, (6, 2, 1))[0])
        own_id = self.rng.random() < 0.6
        append.id = self._client_id() if own_id else None
        try:
            await self._append_until_known(append, node)
        except asyncio.CancelledError:
            append.outcome = Outcome.UNKNOWN
            raise

    async def _append_until_known(self, append: Append, node: Node | None) -> None:
        for _ in range(6):
            if node is None or append.outcome is Outcome.ACKNOWLEDGED:
                break
            result = await self._attempt(
                node, lambda hs: hs.log.append(append.key, append.body, id=append.id)
            )
            if isinstance(result, InvalidInput):
                append.outcome = Outcome.REFUSED
                return
            if not isinstance(result, HeatsinkError):
                self._check(checks.check_receipt, append, result)
                append.id = result.id
                append.outcome = Outcome.ACKNOWLEDGED
            elif append.id is None:
                append.outcome = Outcome.UNKNOWN
                return
            node = self._pick_node()
        if append.outcome is Outcome.PENDING:
            append.outcome = Outcome.UNKNOWN
        elif self.rng.random() < 0.3:
            await self._repeat(append)

    async def _repeat(self, append: Append) -> None:
        """A client whose acknowledgement got lost sends the same append again, anywhere."""
        node = self._pick_node()
        if node is not None and not append.delete_asked:
            await self._attempt(
                node, lambda hs: hs.log.append(append.key, append.body, id=append.id)
            )

    def _client_id(self) -> UUID:
        """Clients have clocks too, a little wrong."""
        time_ms = int((self.truth_clock.now_s() + self.rng.uniform(-3, 0.8)) * 1000)
        raw, _ = Minter(Uuid7(), self.rng).mint(time_ms, time_ms + 1)
        return Uuid7().value(raw)

    async def _read(self) -> None:
        node = self._pick_node()
        if node is not None:
            await self._full_read(node, self.rng.choice(KEYS), self.rng.choice((2, 5, 20, 100)))

    async def _full_read(self, node: Node, key: str, limit: int) -> bool:
        must_see, must_not_see = self.history.must_see(key), self.history.must_not_see(key)
        entries = await self._attempt(node, lambda hs: _all_entries(hs, key, limit))
        if isinstance(entries, HeatsinkError):
            return False
        self.history.reads += 1
        self._check(checks.check_read, must_see, must_not_see, self.history.must_see(key), entries)
        return True

    async def _get(self) -> None:
        known = self.history.acknowledged()
        node = self._pick_node()
        if node is None or not known:
            return
        append = self.rng.choice(known[-30:])
        entry = await self._attempt(node, lambda hs: hs.log.get(append.key, append.id))
        if not isinstance(entry, HeatsinkError):
            self._check(checks.check_get, append, entry)

    async def _delete(self) -> None:
        known = [a for a in self.history.acknowledged() if not a.delete_asked]
        node = self._pick_node()
        if node is None or not known:
            return
        append = self.rng.choice(known[-20:])
        append.delete_asked = True
        result = await self._attempt(node, lambda hs: hs.log.delete(append.key, append.id))
        append.deleted = not isinstance(result, HeatsinkError)

    def _adds(self, key: str) -> Adds:
        return self.history.adds.setdefault(key, Adds())

    async def _add(self) -> None:
        await self._add_times(lambda hs, key: hs.counters.add(key, 1), 1)

    async def _add_with_token(self) -> None:
        token = self._client_id()
        attempts = self.rng.choice((1, 2, 3))
        await self._add_times(lambda hs, key: hs.counters.add(key, 1, token=token), attempts)

    async def _add_times(self, act: Callable[[Any, str], Awaitable[None]], attempts: int) -> None:
        """One logical add, sent several times if it has a token."""
        key = self.rng.choice(COUNTERS)
        adds = self._adds(key)
        adds.attempted += 1
        counted = False
        for _ in range(attempts):
            node = self._pick_node()
            if node is None:
                continue
            result = await self._attempt(node, lambda hs: act(hs, key))
            counted = counted or not isinstance(result, HeatsinkError)
        adds.acknowledged += counted

    async def _count_buffered(self) -> None:
        """A process that counts for a while; each of its adds is acknowledged by some flush."""
        node = self._pick_node()
        if node is not None:
            adds = self._adds(BUFFERED)
            await self._attempt(node, lambda hs: self._buffered_adds(hs, BUFFERED, adds))

    async def _buffered_adds(self, hs: Any, key: str, adds: Adds) -> None:
        async with hs.counters.buffered(flush_s=0.2) as counts:
            for _ in range(self.rng.randrange(1, 80)):
                adds.attempted += 1
                counts.add_soon(key).add_done_callback(adds.acknowledge)
                await asyncio.sleep(0.15)

    async def _value(self) -> None:
        node = self._pick_node()
        if node is not None:
            await self._check_counter(node, self.rng.choice((*COUNTERS, BUFFERED)))

    async def _fold(self) -> None:
        node, key = self._pick_node(), self.rng.choice((*COUNTERS, BUFFERED))
        if node is not None:
            await self._attempt(node, lambda hs: hs.counters.fold(key))

    async def _check_counter(self, node: Node, key: str) -> bool:
        adds = self._adds(key)
        low = adds.acknowledged
        value = await self._attempt(node, lambda hs: hs.counters.value(key))
        if isinstance(value, HeatsinkError):
            return False
        self._check(checks.check_value, low, value, adds.attempted)
        return True

    async def _operate(self) -> None:
        """An operator pins and unpins, so that layouts change often, up and down."""
        node = self._pick_node()
        if node is None:
            return
        key = self.rng.choice(KEYS)
        if self.rng.random() < 0.8:
            buckets = self.rng.choice((1, 2, 3, 4, 8))
            await self._attempt(node, lambda hs: hs.pin(key, buckets=buckets, reason="a whim"))
        else:
            await self._attempt(node, lambda hs: hs.unpin(key))

    def _skew_clocks(self) -> None:
        for node in self.nodes:
            node.clock.offset_s = self.rng.uniform(-0.5, 0.5)
        if self.rng.random() < 0.3:
            self.rng.choice(self.nodes).clock.offset_s = self.rng.choice((YEAR_S, -YEAR_S))
        if self.rng.random() < 0.3:
            self.rng.choice(self.coordinators).clock.offset_s = -2.0

    async def _make_trouble(self) -> None:
        node = self.rng.choice(self.nodes)
        trouble = self.rng.choice(
            (self._crash, self._stall, self._jump, self._cut, self._deafen, self._disturb)
        )
        await trouble(node)

    async def _crash(self, node: Node) -> None:
        if node.client is None:
            return
        node.crash()
        await asyncio.sleep(self.rng.uniform(0.1, 2.0))
        await node.start()

    async def _stall(self, node: Node) -> None:
        is_long = self.rng.random() < 0.002  # dear to simulate: the others go on meanwhile
        node.clock.stall(400.0 if is_long else self.rng.choice((0.5, 2.0, 5.0, 20.0)))

    async def _jump(self, node: Node) -> None:
        node.clock.offset_s += self.rng.uniform(-4.0, 4.0)

    async def _cut(self, node: Node) -> None:
        node.faults.cut = True
        await asyncio.sleep(self.rng.uniform(0.2, 6.0))
        node.faults.cut = False

    async def _deafen(self, node: Node) -> None:
        node.faults.deaf = True
        await asyncio.sleep(self.rng.uniform(0.2, 6.0))
        node.faults.deaf = False

    async def _disturb(self, node: Node) -> None:
        faults = node.faults
        faults.lost, faults.answer_lost = self.rng.uniform(0, 0.1), self.rng.uniform(0, 0.15)
        faults.late = self.rng.uniform(0, 0.1)
        faults.latency_s = (0.001, self.rng.choice((0.01, 0.05, 0.4)))

    async def _calm_down(self) -> None:
        """Faults end; what was sent lands, however late; every process is up again."""
        self._heal()
        for node in self.nodes:
            if node.client is None:
                await node.start()
        while landings := [task for node in self.nodes for task in node.landings]:
            await asyncio.wait(landings)
            if all(task in landings for node in self.nodes for task in node.landings):
                break
        await asyncio.sleep(CALM_S)

    def _heal(self) -> None:
        self.redis.heal()
        for node in self.nodes:
            node.faults.heal()
            node.faults.latency_s = (0.001, 0.01)

    async def _final_checks(self) -> None:
        checks.check_all_answered(self.history)
        for node in self.app_servers:
            await node.clock.awake()
            await self._check_service(node)
        await checks.check_rows(self.backend.stores, self.history)
        await checks.check_registry(self.backend.stores)
        self.history.store_changes = await self.backend.close()
        if self.violation:
            raise self.violation

    async def _check_service(self, node: Node) -> None:
        """Liveness: without faults every server reads everything and takes a new append."""
        for key in KEYS:
            append = self.history.new_append(key)
            await self._append_until_known(append, node)
            if append.outcome is not Outcome.ACKNOWLEDGED:
                raise Violation(f"{node.name} takes no append though nothing is wrong any more")
            if not await self._full_read(node, key, 50):
                raise Violation(f"{node.name} cannot read though nothing is wrong any more")
        for key in (*COUNTERS, BUFFERED):
            if not await self._check_counter(node, key):
                raise Violation(f"{node.name} cannot count though nothing is wrong any more")

    def saw(self, reading: Reading) -> None:
        self._check(self.audit.see, Reading(reading.meta, now_ms(self.truth_clock)))

    def saw_append(self, entry: LogEntry, term: int | None, before: Meta) -> None:
        self.history.layout_changes += len(entry.bucket_decisions)
        self._check(self.audit.see_append, entry, term, before)

    def _check(self, check: Callable[..., None], *evidence: Any) -> None:
        try:
            check(*evidence)
        except Violation as violation:
            self.violation = self.violation or violation


async def _as_coroutine(work: Awaitable[Any]) -> Any:
    return await work


async def _all_entries(hs: Any, key: str, limit: int) -> list[Entry]:
    entries: list[Entry] = []
    cursor = None
    while True:
        page = await hs.log.page(key, limit=limit, cursor=cursor)
        entries += page.entries
        cursor = page.cursor
        if cursor is None:
            return entries


def has_redis(seed: int) -> bool:
    """Half of the seeds run without Redis, as an embedded deployment does."""
    return seed % 2 == 1


def has_folds(seed: int) -> bool:
    """A fourth of the seeds fold counters within the run, and seal the tokens of its beginning."""
    return seed % 4 == 2


def simulate(seed: int) -> History:
    """Run one seed. Raises `Violation` if an invariant does not hold."""
    return play(seed, MemoryBackend, has_folds(seed))


def simulate_dynamodb(seed: int) -> History:
    """The same on DynamoDB's store, over an engine whose partitions run hot and split."""
    return play(seed, DynamoBackend, with_folds=True)


def play(
    seed: int, make_backend: MakeBackend, with_folds: bool, make_world: type[World] = World
) -> History:
    surprises: list[str] = []

    async def run() -> History:
        history = await make_world(seed, make_backend, with_folds).run()
        if surprises:
            raise Violation(surprises[0])
        return history

    def note(_: Hooks, what: str, error: BaseException) -> None:
        surprises.append(f"{what} failed: {error!r}")

    with (
        patch.object(adaptation, "MOVED_AT_ONCE", 5),  # so that requests meet rows on the move
        patch.object(registry, "LOG_KEEP", 3),  # so that views fall behind what is trimmed
        patch.object(relay, "ASKS_S", 2.0 if seed % 4 == 1 else 200.0),  # as in a large fleet
        patch.object(Hooks, "failed", note),
    ):
        return run_on_virtual_time(run())
