"""Remote workers: processes in any language that run items over HTTP.

A server process runs an ordinary consumer for them. So claims, shares of tenants, rates and limits
are those of all other workers. Only the last step differs: where the pool of a Python worker calls
a handler, `Desk.hand_over` gives the item to a remote worker whose `claim` waits for items. Each
item has a lease of its own. After the handover this process forgets the item, and the remote worker
is responsible for it: it renews the lease, and reports the outcome. In both calls the worker sends
a *token*, which contains all that `renew` and `report` need. So it may call any server of the
deployment, even after a restart. Only the lease in the queue counts: if it has ended, the token is
*stale*, and the worker must drop the item, which runs elsewhere.

An item that needs places at limits holds them under the name of its own lease. Each renewal renews
them, too. The pump gives its own places back only after the item has got these, so a limit holds
at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

import msgspec

from heatsink.bulk.actions import Action, Actions, Fail, RateLimited, Retry, check_action
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.limits import Ask, HoldRequest, LimitBook, Need, Needs, hold_places
from heatsink.bulk.results import kept
from heatsink.bulk.store import BACK, DONE, FAILED, RETRY, Outcome, QueueStores, Setback, Slice
from heatsink.errors import Conflict, HeatsinkError, InvalidSetting
from heatsink.primitives.clock import Clock, now_ms

from .calling import NotHandedOver, Room
from .handler_errors import TimedOut, slow_down, verdict
from .held import Held
from .places import rule_of
from .pump import WorkMeter

logger = logging.getLogger("heatsink")
LINGER_S = 0.005  # how long an answer with items waits for further items
ANSWER_BYTES = 4 << 20
ACTIONS_MAX = 1_000
POSTPONED_MS = (500.0, 2_000.0)
KNOWN_S = 1.0  # how long the announced limits are believed
HOLDER = "remote"
NOBODY = "no remote worker waits for this action"
UNREADABLE = "the item cannot be written as JSON: run it with a Python worker"
Verdict = Literal["done", "retry", "fail", "rate_limited", "back"]
_to_json = msgspec.json.Encoder().encode
_packed = msgspec.msgpack.Encoder().encode


class ItemLease(msgspec.Struct, frozen=True, array_like=True):
    """What a token says about an item: where its lease is, and how its action runs.

    `attempt` is the lease. It is random, so nobody can guess a token. `pace` is how many items a
    second this partition started when it handed the item over.
    """

    partition: int
    attempt: str
    part: str
    batch: str
    tenant: str
    action: str
    lane: str
    limited: bool
    tries: int
    result_bytes: int
    started_ms: int
    lease_ms: int
    pace: float
    max_attempts: int
    timeout_s: float
    backoff_s: float
    backoff_max_s: float
    needs: tuple[tuple[str, str], ...] = ()

    @property
    def token(self) -> str:
        return urlsafe_b64encode(_packed(self)).decode().rstrip("=")

    def is_late(self, at_ms: float) -> bool:
        """Return whether the item has run longer than its action allows."""
        return at_ms - self.started_ms > self.timeout_s * 1000


_lease = msgspec.msgpack.Decoder(ItemLease).decode


def lease_of(token: str, field_name: str) -> ItemLease:
    """Decode the lease from a worker's token. Whether the lease still holds is checked later.

    Raises `InvalidSetting` if the text is no token.
    """
    try:
        return _lease(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, msgspec.MsgspecError):
        raise InvalidSetting(
            f"{field_name} has a token that no claim returned: send tokens back unchanged",
            field=field_name,
        ) from None


class Handed(msgspec.Struct, frozen=True):
    """An item for a remote worker: its lease, its index in the batch, and the item as JSON."""

    lease: ItemLease
    submitted_ms: int
    index: int
    body: bytes


class ItemOutcome(NamedTuple):
    """What a remote worker says about an item. `after_s` is the delay that it asks for, if any."""

    token: str
    outcome: Verdict
    result: Any = None
    reason: str = ""
    after_s: float | None = None


async def _elsewhere(item: Any, context: Any) -> None:  # noqa: ARG001
    raise AssertionError("a remote worker runs this action")


def remote_action(name: str, **options: Any) -> Action:
    """Return the action of a remote worker. Raises `InvalidSetting` for a wrong option."""
    return Action(check_action("actions", name), _elsewhere, **options)


def remote_actions(found: Iterable[Action]) -> Actions:
    return Actions().and_also(*found)


# -- claims that wait --------------------------------------------------------------------------


class ClaimRoom(Room):
    """The number of items that remote workers wait for, as room for handlers.

    A worker of a pool waits for room before it takes an item, so an item starts only if a remote
    worker waits for it. While there is no room, a partition does not claim items, book starts or
    keep places.
    """

    ahead = 0

    def __init__(self) -> None:
        self.free = 0
        self.watchers: set[Callable[[], None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        if self.free > 0:
            self.add(-1)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.add(1)
            raise

    def leave(self) -> None:
        self.add(1)

    def add(self, count: int) -> None:
        had = self.free > 0
        self.free += count
        while self.free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self.free -= 1
                turn.set_result(None)
        if had != (self.free > 0):
            for watcher in list(self.watchers):
                watcher()


@dataclass(eq=False)
class WaitingClaim:
    """A remote worker's claim that waits for up to `want` more items of these actions."""

    actions: Mapping[str, Action]
    want: int
    lease_ms: int
    items: list[Handed] = field(default_factory=list)
    size: int = 0
    has_items: asyncio.Event = field(default_factory=asyncio.Event)
    is_full: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, item: Handed) -> None:
        self.items.append(item)
        self.want -= 1
        self.size += len(item.body)
        self.has_items.set()


class Desk:
    """Hands items over to remote workers, renews their leases, and records what they report."""

    def __init__(self, stores: QueueStores, bulk: Bulk, clock: Clock, rng: Random) -> None:
        self.demand = ClaimRoom()
        self.meter = WorkMeter()
        self._stores = stores
        self._bulk = bulk
        self._clock = clock
        self._rng = rng
        self._waiting: dict[WaitingClaim, None] = {}
        self._actions: frozenset[str] = frozenset()
        self._book: LimitBook | None = None
        self._book_s = 0.0
        self._servers: dict[str, str] = {}

    # -- claiming --------------------------------------------------------------------------

    def offer(self, actions: Collection[str]) -> None:
        """Take items of these actions from now on."""
        self._actions = frozenset(actions)

    def takes(self, action: str) -> bool:
        """Return whether remote workers run this action, and not this process."""
        return action in self._actions

    async def claim(
        self, waiting: WaitingClaim, wait_s: float, gone: Callable[[], Awaitable[object]]
    ) -> list[Handed]:
        """Return the items for a claim, or an empty list after `wait_s`.

        When `gone()` ends, the worker has left, and its items go back to the queue.
        """
        leaving = asyncio.ensure_future(gone())
        self._waiting[waiting] = None
        self.demand.add(waiting.want)
        try:
            await self._first_of(wait_s, leaving, waiting.has_items.wait())
            if waiting.items and not leaving.done():
                await self._first_of(LINGER_S, leaving, waiting.is_full.wait())
            has_left = leaving.done()
        except BaseException:
            has_left = True
            raise
        finally:
            self._close(waiting)
            leaving.cancel()
            if has_left and waiting.items:
                await self._give_back(waiting.items)
        return [] if has_left else await self._renewed(waiting)

    async def _first_of(self, timeout_s: float, leaving: Any, event: Awaitable[object]) -> None:
        happening = asyncio.ensure_future(event)
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait([happening, leaving], timeout=timeout_s, return_when=first)
        finally:
            happening.cancel()

    def _close(self, waiting: WaitingClaim) -> None:
        if waiting in self._waiting:
            del self._waiting[waiting]
            self.demand.add(-waiting.want)
            waiting.is_full.set()

    def end_claims(self) -> None:
        """End the claims that wait, each with the items that it has."""
        for waiting in list(self._waiting):
            self._close(waiting)
            waiting.has_items.set()

    async def hand_over(
        self, partition: int, held: Held, needs: Needs, pace: float
    ) -> NotHandedOver | None:
        """Give the only item of a slice to a worker that waits for it.

        Returns the outcome of an item that cannot be given; otherwise None, and the caller is not
        responsible for the item any more.
        """
        waiting = self._waiting_for(held.slice.action)
        if waiting is None:
            delay_ms = int(self._rng.uniform(*POSTPONED_MS))
            return RETRY, Setback(0, NOBODY, delay_ms, counted=False)
        try:
            body = _to_json(held.items[0])
        except (TypeError, ValueError):
            return FAILED, Setback(0, UNREADABLE)
        lease = self._lease(partition, held.slice, needs, pace, waiting)
        if needs:
            await self._hold(lease, 1)
        if held.lost or waiting not in self._waiting:  # meanwhile
            await self._release([lease])
            return BACK, Setback(0, NOBODY)
        self.demand.add(-1)
        waiting.put(Handed(lease, held.slice.submitted_ms, held.indexes[0], body))
        if waiting.want <= 0 or waiting.size >= ANSWER_BYTES:
            self._close(waiting)
        return None

    def _waiting_for(self, action: str) -> WaitingClaim | None:
        """Return a claim that waits for this action. Claims take turns."""
        for waiting in self._waiting:
            if action in waiting.actions:
                del self._waiting[waiting]
                self._waiting[waiting] = None
                return waiting
        return None

    def _lease(
        self, partition: int, claimed: Slice, needs: Needs, pace: float, waiting: WaitingClaim
    ) -> ItemLease:
        action = waiting.actions[claimed.action]
        return ItemLease(
            partition=partition,
            attempt=claimed.attempt,
            part=claimed.part,
            batch=claimed.batch,
            tenant=claimed.tenant,
            action=claimed.action,
            lane=claimed.lane,
            limited=claimed.limited,
            tries=claimed.tries,
            result_bytes=claimed.result_bytes,
            started_ms=now_ms(self._clock),
            lease_ms=waiting.lease_ms,
            pace=pace,
            max_attempts=action.max_attempts,
            timeout_s=action.timeout_s,
            backoff_s=action.backoff_s,
            backoff_max_s=action.backoff_max_s,
            needs=needs,
        )

    async def _renewed(self, waiting: WaitingClaim) -> list[Handed]:
        """Give the items of an answer a whole lease, and return those that still have one."""
        lost = await self._renew([item.lease for item in waiting.items])
        return [item for item in waiting.items if item.lease.attempt not in lost]

    async def _give_back(self, items: Sequence[Handed]) -> None:
        try:
            await self._settle({each.lease: Outcome(each.lease.attempt, BACK, 0) for each in items})
        except HeatsinkError as error:
            logger.info("giving back items failed, so their leases must end: %s", error)

    # -- renewing --------------------------------------------------------------------------

    async def renew(self, tokens: Sequence[str]) -> list[str]:
        """Renew leases, with their places at limits. Returns the tokens that are stale.

        An item that has run for longer than its action's `timeout_s` is taken from its worker, and
        the attempt counts.
        """
        leases = {lease_of(token, "tokens"): token for token in tokens}
        at_ms = now_ms(self._clock)
        late = [lease for lease in leases if lease.is_late(at_ms)]
        for lease in late:
            error = TimedOut(f"the worker took longer than timeout_s={lease.timeout_s:g}")
            await self._settle({lease: self._outcome(lease, error)})
        alive = [lease for lease in leases if lease not in late]
        for lease in alive:
            if lease.needs:
                await self._hold(lease, 1)
        lost = await self._renew(alive)
        gone = [lease for lease in alive if lease.attempt in lost]
        await self._release(gone)
        return [leases[lease] for lease in (*late, *gone)]

    async def _renew(self, leases: Sequence[ItemLease]) -> set[str]:
        """Renew leases. Returns the attempts whose lease has ended."""
        kinds: dict[tuple[int, int], list[str]] = {}
        for lease in leases:
            kinds.setdefault((lease.partition, lease.lease_ms), []).append(lease.attempt)
        settle = self._stores.queue.settle
        calls = (settle(place, [], beats, ms) for (place, ms), beats in kinds.items())
        return {attempt for lost in await asyncio.gather(*calls) for attempt in lost}

    # -- reporting -------------------------------------------------------------------------

    async def report(self, reports: Sequence[ItemOutcome]) -> list[str]:
        """Record outcomes. Returns the tokens that are stale: for these nothing was recorded."""
        outcomes, slowed = {}, []
        tokens = {}
        for each in reports:
            lease = lease_of(each.token, "items")
            tokens[lease] = each.token
            error = _error_of(each)
            if isinstance(error, RateLimited):
                slowed.append((lease, each.after_s or 0.0))
            outcomes[lease] = self._judged(lease, each, error)
        lost = await self._settle(outcomes)
        for lease, after_s in slowed:
            if lease not in lost:
                asked = lease.partition, _slice_of(lease), lease.pace, after_s
                await slow_down(self._stores, *asked)
        return [tokens[lease] for lease in lost]

    def _judged(self, lease: ItemLease, report: ItemOutcome, error: Exception | None) -> Outcome:
        if report.outcome == "back":
            return Outcome(lease.attempt, BACK, 0)
        if error is not None:
            return self._outcome(lease, error)
        results = []
        if lease.result_bytes:
            try:
                results = [(0, kept(report.result, lease.result_bytes))]
            except Fail as fail:
                return self._outcome(lease, fail)
        return Outcome(lease.attempt, DONE, self._used_us(lease), [], results)

    def _outcome(self, lease: ItemLease, error: Exception) -> Outcome:
        """Return the outcome of an attempt that failed, as for a handler in Python."""
        action = Action(
            lease.action,
            _elsewhere,
            max_attempts=lease.max_attempts,
            backoff_s=lease.backoff_s,
            backoff_max_s=lease.backoff_max_s,
        )
        mark, setback = verdict(action, 0, lease.tries + 1, error, self._rng)
        return Outcome(lease.attempt, mark, self._used_us(lease), [setback])

    def _used_us(self, lease: ItemLease) -> int:
        """Return how long the item ran: its tenant pays for this time."""
        passed_ms = max(now_ms(self._clock) - lease.started_ms, 0)
        return int(min(passed_ms, lease.timeout_s * 1000) * 1000)

    async def _settle(self, outcomes: Mapping[ItemLease, Outcome]) -> list[ItemLease]:
        """Record outcomes, and return the leases that had ended before."""
        places: dict[int, list[Outcome]] = {}
        for lease, outcome in outcomes.items():
            places.setdefault(lease.partition, []).append(outcome)
        settle = self._stores.queue.settle
        calls = (settle(place, found, [], 0) for place, found in places.items())
        lost = {attempt for gone in await asyncio.gather(*calls) for attempt in gone}
        for lease, outcome in outcomes.items():
            if lease.attempt not in lost:
                self.meter.sent(_slice_of(lease), None, outcome)
        self.meter.fenced += len(lost)
        await self._release(outcomes)
        return [lease for lease in outcomes if lease.attempt in lost]

    # -- places at limits ------------------------------------------------------------------

    async def _hold(self, lease: ItemLease, running: int) -> None:
        """Hold the item's places for one lease, or give them back."""
        book = await self._known_limits()
        for need in (Need(*pair) for pair in lease.needs):
            if need.limit not in book.own.limits:
                continue
            request = HoldRequest(
                need.limit,
                rule_of(book.limit(need.limit), self._clock.now_s(), book.version),
                f"{HOLDER}/{lease.attempt}",
                0,  # calls may arrive in any order: a late renewal only keeps a place for a lease
                lease.lease_ms,
                [Ask(need.key, running)],
                lease.partition,
                self._servers.get(need.limit, ""),
            )
            answer = await hold_places(self._stores.places, request)
            self._servers[need.limit] = answer.server

    async def _release(self, leases: Iterable[ItemLease]) -> None:
        """Give back the places of ended items. If a call fails, the places' leases will end."""
        for lease in leases:
            if not lease.needs:
                continue
            try:
                await self._hold(lease, 0)
            except HeatsinkError as error:
                logger.info("giving back a place at a limit failed: %s", error)

    async def _known_limits(self) -> LimitBook:
        now_s = self._clock.monotonic_s()
        if self._book is None or now_s - self._book_s > KNOWN_S:
            self._book = LimitBook(await self._stores.places.declared())
            self._book_s = now_s
        self._book.change(self._bulk.settings.limits, self._bulk.controls)
        return self._book


def _error_of(report: ItemOutcome) -> Exception | None:
    """Return the exception that a handler in Python would have raised."""
    if report.outcome == "retry":
        return Retry(report.after_s, report.reason or "the worker asked for a retry")
    if report.outcome == "rate_limited":
        return RateLimited(report.after_s)
    return Fail(report.reason or "the worker gave no reason") if report.outcome == "fail" else None


def _slice_of(lease: ItemLease) -> Slice:
    return Slice(
        lease.attempt,
        lease.part,
        lease.batch,
        lease.tenant,
        lease.action,
        lease.lane,
        lease.limited,
        0,
        0,
        1,
        lease.tries,
        b"",
    )


def merged(known: Mapping[str, Action], more: Mapping[str, Action]) -> dict[str, Action]:
    """Return the actions of all remote workers.

    Raises `Conflict` if they declare a limit, or the limits of an action, in two ways.
    """
    limits = {limit.name: limit for action in known.values() for limit in action.limits}
    for name, action in more.items():
        if name in known and known[name].limits != action.limits:
            raise Conflict(
                f"action {name!r} has other limits in another remote worker: declare them equally, "
                "or stop the others first"
            )
        for limit in action.limits:
            if limits.setdefault(limit.name, limit) != limit:
                raise Conflict(
                    f"limit {limit.name!r} is declared as `{limit}` here, and elsewhere as "
                    f"`{limits[limit.name]}`: declare it equally everywhere"
                )
    both = {**more, **known}
    if len(both) > ACTIONS_MAX:
        raise InvalidSetting(
            f"remote workers have more than {ACTIONS_MAX:,} actions", field="actions"
        )
    return both
