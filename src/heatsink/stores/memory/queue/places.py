"""Places at limits, in memory. This module defines how the homes of limits must behave.

A *holder* of places is one queue partition in one worker process. Each call of a holder says, for a
key of the limit, which places it uses and keeps, and how many more it wants. A call may be lost or
repeated: the next one corrects everything. At `Holder.until_ms` the holder's lease ends, and its
places are free.

Each key has a line. A holder that gets fewer places than it wants waits in the line. After each
grant it goes to the end of the line, so holders take turns. A free place is *offered* to the first
holder in the line, and the bell of this holder rings. For `OFFER_MS` no other holder gets the
place. If the holder does not ask for it in this time, it leaves the line until its next call. Its
process is probably dead. So the home makes no offers to any holder of this process, at any key of
the limit, until one of them calls.

A rate limits the sum of two counts: the starts that were reported within the last period (or since
midnight), and the places that are granted and not used yet. A start counts from the moment of its
report, which comes after the start. So no period has more starts than the rate allows, even if
clocks of processes are wrong.

A server that was restarted or replaced may have lost its newest grants. The home notices this: the
server's name differs from the name in the slot, or from the name that a caller knows. Then the home
grants nothing for one lease. In this time the holders report which places they use.

An operator may change what a limit allows. The home follows the newest rule that any process has
sent, even in calls of processes that know only an older one. So a process that no longer reaches
the registry cannot get more than the new rule allows.

A server that lost the whole slot could not notice this: the slot would look like that of a limit
that nobody has used yet. So a home that has just been made grants nothing until its name of the
server is durable (`confirm`). After that, every server that may take over has the name. There are
two exceptions: a replica that was down, and a queue that does not wait until data is durable.
Therefore a server that was ever promoted treats an unknown limit as a lost one: it grants nothing
for one lease.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from msgspec.structs import replace

from heatsink.bulk.limits import (
    Ask,
    DeclaredLimits,
    Granted,
    HoldAnswer,
    HoldRequest,
    KeyUse,
    Limit,
    Offer,
    Rule,
    process_of,
)
from heatsink.bulk.store import ANNOUNCED_MS
from heatsink.primitives.clock import Clock
from heatsink.primitives.slot_time import SlotTime, Timed, moved_along

OFFER_MS = 100.0  # how long a process that has died costs a place to which it was next
MERGED = 64  # starts of a period are kept as about so many numbers
PLACES_MAX = 1_000_000
PROMOTED = "+"  # in the name of a simulated server that replaced another one
SWEEP_MIN = 1_000  # keys
NO_RULE = Rule()


@dataclass
class Holder:
    """What the home of a limit knows of one holder: a queue partition in one worker process.

    Its lease ends at `until_ms`. `line` is its number in the line; 0 if it does not wait. A free
    place is kept for it until `offer_ms`.
    """

    turn: int
    until_ms: float
    bell: int = 0
    running: int = 0
    fresh: int = 0
    want: int = 0
    line: int = 0
    offer_ms: float = 0.0
    process: str = ""

    @property
    def held(self) -> int:
        return self.running + self.fresh


@dataclass
class Starts:
    """`count` starts of items, which holders reported between `first_ms` and `last_ms`."""

    first_ms: float
    last_ms: float
    count: int


@dataclass
class LimitKey:
    """One key of a limit.

    `starts` maps each rate of the limit to the starts that holders have reported, oldest first.
    `silent` has the processes that get no offers, each with the time at which its lease ends. All
    keys of a limit share `silent`.
    """

    holders: dict[str, Holder] = field(default_factory=dict)
    starts: dict[str, list[Starts]] = field(default_factory=dict)
    line: int = 0
    moved_ms: float = 0.0
    silent: dict[str, float] = field(default_factory=dict)

    def move_along(self, moved_ms: float) -> None:
        """Move all stored times, after the slot's time has jumped.

        `moved_ms` is the sum of all such jumps so far. So no lease ends because of a jump.
        """
        by_ms, self.moved_ms = moved_ms - self.moved_ms, moved_ms
        if not by_ms:
            return
        for holder in self.holders.values():
            holder.until_ms += by_ms
            holder.offer_ms += by_ms if holder.offer_ms else 0.0
        for each in (starts for found in self.starts.values() for starts in found):
            each.first_ms += by_ms
            each.last_ms += by_ms

    def next_in_line(self) -> int:
        self.line += 1
        return self.line

    # -- the decision ----------------------------------------------------------------------

    def waiting(self) -> list[Holder]:
        """Return the holders that wait for places, the first in the line first."""
        waiting = (h for h in self.holders.values() if h.want and h.process not in self.silent)
        return sorted(waiting, key=lambda holder: holder.line)

    def hold(
        self, request: HoldRequest, ask: Ask, now_ms: float, grants: bool
    ) -> tuple[Granted, list[int]]:
        """Record what a holder says in `ask`.

        Returns what the holder is granted, and the bells of the holders that got an offer. If the
        call's turn is not 0, and not above the turn of the holder's last call, the call changes
        nothing. Without `grants`, nobody gets a place now.
        """
        self.expire(request.rule, now_ms)
        process, mine = process_of(request.holder), self.holders.get(request.holder)
        if mine is not None and mine.turn >= request.turn > 0:
            return Granted(ask.key), []
        is_known = mine is not None
        self.note(request.rule, ask.started, now_ms)
        if mine is None:
            mine = self.holders[request.holder] = Holder(0, 0.0, process=process)
        mine.turn, mine.until_ms = request.turn, now_ms + request.lease_ms
        mine.bell, mine.running, mine.fresh = request.bell, ask.running, ask.fresh
        mine.want = ask.want
        if grants and not is_known and ask.fresh:  # its lease had ended: others may have these
            mine.fresh = 0
            mine.fresh = max(min(ask.fresh, self.free(request.rule)), 0)
        taken = ask.fresh - mine.fresh
        if not ask.want:
            mine.line, mine.offer_ms = 0, 0.0
        elif not mine.line:
            mine.line = self.next_in_line()
        places, bells = self.deal(request.rule, mine, now_ms) if grants else (0, [])
        others = any(each is not mine for each in self.waiting())
        others = others or self.free(request.rule) < 0  # the limit was lowered
        wait_ms = self.wait_ms(request.rule, mine, now_ms) if mine.want else 0.0
        return Granted(ask.key, places - taken, others, wait_ms), bells

    def expire(self, rule: Rule, now_ms: float) -> None:
        """Free the places of holders whose lease has ended.

        Granted places without a running item count as started, since their items may have started.
        """
        gone = [name for name, holder in self.holders.items() if holder.until_ms <= now_ms]
        for name in gone:
            self.note(rule, self.holders.pop(name).fresh, now_ms)

    def note(self, rule: Rule, started: int, now_ms: float) -> None:
        """Count `started` starts in the windows of all rates.

        Forget starts that no window contains.
        """
        for text, _, period_ms, midnights in rule.windows:
            found = self.starts.setdefault(text, [])
            begin_ms = _begin(period_ms, midnights, now_ms)
            found[:] = [each for each in found if each.last_ms > begin_ms or midnights]
            if midnights and found and found[-1].first_ms < begin_ms:
                found.clear()
            if not started:
                continue
            width_ms = inf if midnights else period_ms / MERGED
            if found and now_ms - found[-1].first_ms < width_ms:
                found[-1].last_ms = max(now_ms, found[-1].last_ms)
                found[-1].count += started
            else:
                found.append(Starts(now_ms, now_ms, started))
        known = {text for text, *_ in rule.windows}
        for text in [text for text in self.starts if text not in known]:
            del self.starts[text]

    def free(self, rule: Rule) -> int:
        """Return how many more places may be granted now."""
        left = PLACES_MAX
        if rule.running is not None:
            left = min(left, rule.running - sum(each.held for each in self.holders.values()))
        fresh = sum(each.fresh for each in self.holders.values())
        for text, count, *_ in rule.windows:
            used = sum(each.count for each in self.starts.get(text, ()))
            left = min(left, count - used - fresh)
        return left

    def deal(self, rule: Rule, mine: Holder, now_ms: float) -> tuple[int, list[int]]:
        """Give free places to the holders in the line.

        The holder that calls (`mine`) gets its places at once. For other holders, the home keeps
        places as offers. Returns the number of places for `mine`, and the bells to ring.
        """
        left, granted, bells = self.free(rule), 0, []
        for holder in self.waiting():
            if left <= 0:
                break
            if holder.process in self.silent:  # since an offer to another holder of the process
                continue
            count = min(holder.want, left)
            if holder is mine:
                granted = count
                mine.fresh, mine.want, mine.offer_ms = mine.fresh + count, mine.want - count, 0.0
                mine.line = self.next_in_line() if mine.want else 0
            elif not holder.offer_ms:
                holder.offer_ms = now_ms + OFFER_MS
                bells.append(holder.bell)
            elif holder.offer_ms <= now_ms:  # it did not come, and may be dead
                holder.offer_ms, holder.line, holder.want = 0.0, 0, 0
                if holder.process != mine.process:
                    self.silent[holder.process] = holder.until_ms
                continue
            left -= count
        return granted, bells

    def wait_ms(self, rule: Rule, mine: Holder, now_ms: float) -> float:
        """Return after how many milliseconds a place may be free, even if no holder returns one.

        At that time a lease, an offer or a rate's window ends.
        """
        dues = [h.until_ms for h in self.holders.values() if h is not mine and h.held]
        dues += [h.offer_ms for h in self.holders.values() if h is not mine and h.offer_ms > now_ms]
        for text, _, period_ms, midnights in rule.windows:
            if midnights:
                dues += [due_ms for due_ms in midnights if due_ms > now_ms][:1]
            elif found := self.starts.get(text):
                dues.append(found[0].last_ms + period_ms)
        return max(min(dues, default=mine.until_ms) - now_ms, 0.0)

    def use(self, limit: str, key: str, now_ms: float) -> KeyUse:
        holders = [holder for holder in self.holders.values() if holder.until_ms > now_ms]
        return KeyUse(limit, key, sum(h.held for h in holders), sum(h.want for h in holders))


def _begin(period_ms: float, midnights: Sequence[float], now_ms: float) -> float:
    """Return when the window that ends now began."""
    if midnights:
        return max((each for each in midnights if each <= now_ms), default=-inf)
    return now_ms - period_ms


@dataclass
class LimitHome:
    """The home of one limit, in its own slot.

    `lease_ms` is the longest lease that a holder has had. `server` is the server at the last call,
    `confirmed` the server at which the home was durable, and `rebuilt` the last server at which
    holders reported their places again. `rule` is the newest rule of the limit. `silent` has the
    processes that get no offers, and until when.
    """

    time: SlotTime | None = None
    server: str = ""
    confirmed: str = ""
    rebuilt: str = ""
    quiet_ms: float = 0.0
    lease_ms: float = 0.0
    moved_ms: float = 0.0
    rule: Rule = NO_RULE
    keys: dict[str, LimitKey] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    swept: int = 0

    def meet(self, request: HoldRequest, server: str, now_ms: float) -> None:
        """Grant nothing for one lease if this server may have lost grants of another one."""
        self.lease_ms = max(self.lease_ms, request.lease_ms)
        is_lost = bool(request.server) and not self.server
        is_replaced = bool(self.server) and self.server != server
        is_late_news = request.server not in ("", server) and self.rebuilt != server
        is_unknown = not self.server and PROMOTED in server
        if is_lost or is_replaced or is_late_news or is_unknown:
            self.quiet_ms, self.rebuilt = now_ms + self.lease_ms, server
        self.server = server

    @property
    def is_new(self) -> bool:
        """Whether a fail-over may lose the name of this server."""
        return self.confirmed != self.server

    def hold(
        self, request: HoldRequest, server: str, now_ms: float
    ) -> tuple[HoldAnswer, list[Offer]]:
        self.meet(request, server, now_ms)
        if self.is_new:
            return HoldAnswer(server, [], max(self.quiet_ms - now_ms, 0.0), is_new=True), []
        request = replace(request, rule=self.follow(request.rule))
        granted, offers = [], []
        self.hear(process_of(request.holder), now_ms)
        for ask in request.asks:
            key = self.key(ask.key)
            grant, rung = key.hold(request, ask, now_ms, now_ms >= self.quiet_ms)
            granted.append(grant)
            offers += [Offer(bell, request.limit, ask.key) for bell in rung]
        self.sweep(now_ms)
        return HoldAnswer(server, granted, max(self.quiet_ms - now_ms, 0.0)), offers

    def hear(self, process: str, now_ms: float) -> None:
        """Note that a process has called. Forget silent processes without leases."""
        self.silent.pop(process, None)
        for gone in [name for name, until_ms in self.silent.items() if until_ms <= now_ms]:
            del self.silent[gone]

    def follow(self, rule: Rule) -> Rule:
        """Return the newest rule: `rule`, unless the home knows a newer one."""
        self.rule = rule if rule.replaces(self.rule) else self.rule.at(rule)
        return self.rule

    def key(self, name: str) -> LimitKey:
        key = self.keys.setdefault(name, LimitKey(moved_ms=self.moved_ms, silent=self.silent))
        key.move_along(self.moved_ms)
        return key

    def sweep(self, now_ms: float) -> None:
        """Forget keys that nobody uses, whenever the number of keys has doubled."""
        if len(self.keys) <= max(2 * self.swept, SWEEP_MIN):
            return
        for name, key in list(self.keys.items()):
            live = any(holder.until_ms > now_ms for holder in key.holders.values())
            if not live and not any(key.starts.values()):
                del self.keys[name]
        self.swept = len(self.keys)

    def pass_time(self, time: SlotTime) -> float:
        self.time = time
        if time.late_ms:
            self.quiet_ms = moved_along(self.quiet_ms, time)
            self.moved_ms += time.late_ms
        return time.own_ms


@dataclass
class _Announced:
    limits: dict[str, tuple[Limit, str, float]] = field(default_factory=dict)
    actions: dict[str, tuple[tuple[str, ...], float]] = field(default_factory=dict)


class MemoryPlaces(Timed):
    """The homes of limits. `server` names the simulated server: a restart gives it a new name."""

    def __init__(self, clock: Clock, offer: Callable[[Offer], None]) -> None:
        super().__init__(clock)
        self.homes: dict[str, LimitHome] = {}
        self.server = ["1"]
        self._offer = offer
        self._announced = _Announced()

    def _home(self, limit: str) -> tuple[LimitHome, float]:
        home = self.homes.setdefault(limit, LimitHome())
        now_ms = home.pass_time(self._time(f"limit/{limit}", home.time))
        return home, now_ms

    async def hold(self, request: HoldRequest) -> HoldAnswer:
        home, now_ms = self._home(request.limit)
        answer, offers = home.hold(request, self.server[0], now_ms)
        self._witness.heard(f"limit/{request.limit}", home.time.told_ms if home.time else 0.0)
        for offer in offers:
            self._offer(offer)
        return answer

    async def confirm(self, limit: str, server: str) -> None:
        home, _ = self._home(limit)
        home.confirmed = server

    async def free(self, process: str, limits: Sequence[str]) -> int:
        count = 0
        for limit in limits:
            home, now_ms = self._home(limit)
            for key_name in list(home.keys):
                key = home.key(key_name)
                for name, holder in key.holders.items():
                    if name.startswith(process) and holder.until_ms > now_ms:
                        holder.until_ms = now_ms
                        count += holder.held
                    elif holder.want:
                        self._offer(Offer(holder.bell, limit, key_name))
        return count

    async def use(self, limit: str, most: int) -> list[KeyUse]:
        home, now_ms = self._home(limit)
        uses = (home.key(name).use(limit, name, now_ms) for name in list(home.keys))
        used = [use for use in uses if use.running or use.waiting]
        return sorted(used, key=lambda use: (-use.waiting, -use.running, use.key))[:most]

    async def declare(self, process: str, declared: DeclaredLimits, ttl_ms: int) -> DeclaredLimits:
        now_ms, known = self._clock.now_s() * 1000, self._announced
        for name, limit in declared.limits.items():
            before, by, until_ms = known.limits.get(name, (limit, process, 0.0))
            if before == limit or by == process or until_ms <= now_ms:
                known.limits[name] = limit, process, now_ms + ttl_ms
        for action, names in declared.actions.items():
            known.actions[action] = tuple(names), now_ms + ttl_ms
        return await self.declared()

    async def declared(self) -> DeclaredLimits:
        since_ms, known = self._clock.now_s() * 1000 - ANNOUNCED_MS, self._announced
        return DeclaredLimits(
            {name: limit for name, (limit, _, until) in known.limits.items() if until > since_ms},
            {name: names for name, (names, until) in known.actions.items() if until > since_ms},
        )
