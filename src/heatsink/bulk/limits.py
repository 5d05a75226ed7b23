"""Limits: how many items may run at a time, or start per period, over all workers.

A `Limit` has a name, and actions share it. It counts either all its items together, or the items of
each *key* apart. The key is the value of a field of the item, the tenant, or the action. `submit`
groups a batch's items by their keys, so that all items of a part need the same limits. These
`Need`s are part of the name of the part's lane. Items that wait for a limit stay in their lane and
cost nothing.

A worker process takes *places* before it claims items from such a lane: one place at each limit for
each item. The home of a limit, a slot of its own on the queue's home, hands out the places under a
lease (`PlaceStore`). `stores/memory/queue/places.py` decides who gets the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import CheckedStruct, check_text, check_whole, shown

from .batch import PERIODS_S, RATE_MAX
from .controls import NO_CONTROLS, Controls

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
RUNNING_MAX = 1_000_000
RATES_MAX = 8
KEY_MAX = 512
PER = ("tenant", "action")
MARK = "\x00limits:"
DAY = ("d", "day")
PERIODS = {**PERIODS_S, "d": 86_400.0, "day": 86_400.0}
_encode = msgspec.json.Encoder(order="deterministic").encode
_needs = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode


class Window(msgspec.Struct, frozen=True):
    """At most `count` starts in any `period_s` seconds; with `zone`, in any day of that zone.

    A day begins at midnight. On the days on which daylight saving time begins or ends, it has 23 or
    25 hours.
    """

    count: int
    period_s: float
    zone: str = ""


def parse_window(text: object) -> Window:
    """Return the window of a text such as "10/s" or "100000/day Europe/Berlin"."""
    amount, _, zone = text.strip().partition(" ") if isinstance(text, str) else ("", "", "")
    count, _, unit = amount.partition("/")
    number = count.replace(",", "").replace("_", "")
    is_number = number.isascii() and number.isdecimal() and 0 < int(number) <= RATE_MAX
    if not is_number or unit not in PERIODS or (zone and unit not in DAY):
        raise InvalidSetting(
            "rates must be texts like '10/s', '600/min', '100/h', '100000/day' (any 24 hours) or "
            f"'100000/day Europe/Berlin' (midnight to midnight), not {shown(text)}",
            field="rates",
        )
    zone = zone.strip()
    if zone:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InvalidSetting(
                f"rates has the unknown time zone {shown(zone)}: use a name like 'Europe/Berlin' "
                "or 'UTC'",
                field="rates",
            ) from None
    return Window(int(number), PERIODS[unit], zone)


def parse_amounts(name: str, text: object) -> tuple[int | None, tuple[str, ...]]:
    """Return `running` and `rates` of a text such as "5, 20/s, 100000/day Europe/Berlin".

    A number alone is how many items may run at a time. `name` names the setting in errors.
    """
    running: int | None = None
    rates: list[str] = []
    for word in text.split(",") if isinstance(text, str) else []:
        amount = word.strip()
        if amount.isascii() and amount.isdecimal() and running is None:
            running = check_whole(name, int(amount), 0, RUNNING_MAX)
        else:
            parse_window(amount)
            rates.append(amount)
    if running is None and not rates:
        raise InvalidSetting(
            f"{name} must be a text like '5' (running), '20/s' or '5, 20/s', not {shown(text)}",
            field=name,
        )
    return running, tuple(rates)


class Limit(CheckedStruct, frozen=True):
    """A limit that actions share. The actions that name it count together.

    `running` is how many items may run at a time, over all workers. `rates` are how many may start
    per period. All hold at once: `["10/s", "100000/day Europe/Berlin"]` uses up the day's quota at
    10 items a second. With `key`, a field of the item (`"account"`, or `"user.id"` for a field
    within a field), each value of this field has its own count; items without the field count
    together. `per="tenant"` or `per="action"` count each tenant or each action apart. Raises
    `InvalidSetting`::

        accounts = Limit("accounts", running=5, key="account")
        @actions.action("send", limits=[accounts, Limit("mail", rates=["10/s"])])
    """

    name: str
    """The name under which actions and processes share the limit."""
    running: int | None = None
    """How many items may run at a time; None for any number, 0 for none."""
    rates: Sequence[str] = ()
    """How many items may start per period: texts such as "10/s"."""
    key: str = ""
    """The field of the item whose values have counts of their own."""
    per: str = ""
    """`tenant` or `action`: each has a count of its own."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise InvalidSetting(
                "name must be 1 to 100 characters of A-Z a-z 0-9 _ . - and begin with a letter or "
                f"digit, not {shown(self.name)}",
                field="name",
            )
        if self.running is not None:
            check_whole("running", self.running, 0, RUNNING_MAX)
        rates = [self.rates] if isinstance(self.rates, str) else self.rates
        if not isinstance(rates, list | tuple) or len(rates) > RATES_MAX:
            raise InvalidSetting(
                f"rates must be a list of up to {RATES_MAX} texts, not {shown(rates)}",
                field="rates",
            )
        for rate in rates:
            parse_window(rate)
        msgspec.structs.force_setattr(self, "rates", tuple(rates))
        if self.running is None and not rates:
            raise InvalidSetting(
                f"limit {self.name!r} limits nothing: set running or rates", field="running"
            )
        if self.key:
            check_text("key", self.key, KEY_MAX)
        if self.per and self.per not in PER:
            raise InvalidSetting(
                f"per must be 'tenant' or 'action', not {shown(self.per)}: for a field of the "
                "item, use key",
                field="per",
            )

    @property
    def counting(self) -> Counting:
        """Return what the limit counts apart, as batches keep it."""
        return Counting(self.name, self.per, self.key)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The rates as windows."""
        return tuple(map(parse_window, self.rates))

    def allowing(self, amounts: str) -> Limit:
        """Return this limit with other amounts, such as "5, 20/s". Raises `InvalidSetting`."""
        running, rates = parse_amounts(self.name, amounts)
        return msgspec.structs.replace(self, running=running, rates=rates)

    def __str__(self) -> str:
        running = [f"at most {self.running:,} running"] if self.running is not None else []
        whose = [f"per {name}" for name in (self.per, self.key) if name]
        return " ".join([", ".join([*running, *self.rates]), *whose])


class Counting(NamedTuple):
    """What a limit counts separately: tenants or actions (`per`), or values of a field (`key`).

    `limit` is the limit's name. The batch's record keeps a copy, so that the batch's groups stay
    the same when the limit is declared in another way.
    """

    limit: str
    per: str
    key: str


class Need(NamedTuple):
    """One place that an item needs: at `limit`, in the count of `key`.

    `Need("accounts", '"ada"')` counts among the items whose account is ada. The key is empty if the
    limit counts all items together.
    """

    limit: str
    key: str


Needs = tuple[Need, ...]


def check_limits(action: str, limits: object) -> tuple[Limit, ...]:
    """Return an action's limits, ordered by name. Raises `InvalidSetting`."""
    found: list[Any] = list(limits) if isinstance(limits, list | tuple) else [None]
    if not all(isinstance(limit, Limit) for limit in found):
        raise InvalidSetting(
            f"limits of action {action!r} must be a list of heatsink.bulk.Limit, "
            f"not {shown(limits)}",
            field="limits",
        )
    names = [limit.name for limit in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidSetting(
            f"limits of action {action!r} name {twice[0]!r} twice: give each limit its own name",
            field="limits",
        )
    return tuple(sorted(found, key=lambda limit: limit.name))


def check_equal(known: Limit, limit: Limit, where: str) -> None:
    """Raise `InvalidSetting` if a shared limit is declared in two ways."""
    if known != limit:
        raise InvalidSetting(
            f"limit {limit.name!r} is declared as `{limit}` and, {where}, as `{known}`: declare it "
            "equally everywhere, or give one of them another name",
            field="limits",
        )


# -- which limits an item needs ------------------------------------------------------------------


def field_of(item: Any, path: str) -> Any:
    """Return the field `path` of an item; None if there is no such field."""
    for name in path.split("."):
        item = item.get(name) if isinstance(item, dict) else getattr(item, name, None)
    return item


def needs_of(limits: Iterable[Counting], action: str, tenant: str, item: Any) -> Needs:
    """Return the places that an item needs: one at each limit, ordered by the limit's name.

    All workers take places in this order.
    """
    needs = []
    for limit in limits:
        parts: list[Any] = []
        if limit.per:
            parts.append(tenant if limit.per == "tenant" else action)
        if limit.key:
            parts.append(field_of(item, limit.key))
        needs.append(Need(limit.limit, _key_text(parts)))
    return tuple(needs)


def _key_text(parts: list[Any]) -> str:
    if not parts:
        return ""
    try:
        return _encode(parts if len(parts) > 1 else parts[0]).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(type(parts[-1]))


def lane_with(lane: str, needs: Needs) -> str:
    """Return the name of the lane for those items of `lane` that have these needs.

    Without needs, this is `lane` itself.
    """
    return f"{lane}{MARK}{_encode(needs).decode()}" if needs else lane


def lane_and_needs(name: str) -> tuple[str, Needs]:
    """Split a name from `lane_with`: return the lane of tenant and action, and the needs."""
    lane, mark, text = name.rpartition(MARK)
    if not mark:
        return name, ()
    try:
        return lane, tuple(Need(*pair) for pair in _needs(text))
    except msgspec.MsgspecError:
        return name, ()


# -- places at a limit ---------------------------------------------------------------------------


class Ask(msgspec.Struct, frozen=True):
    """What a holder tells the home of a limit about one key.

    A holder is one partition of one process.

    The holder runs `running` items of this key. It has `fresh` more places, whose items have not
    started yet. `started` items started since the home's last answer. The holder wants `want` more
    places and waits in the key's line for them; with 0 it leaves the line.
    """

    key: str
    running: int = 0
    fresh: int = 0
    started: int = 0
    want: int = 0


class Rule(msgspec.Struct, frozen=True):
    """What a limit allows now: as its actions declare it, or as an operator has changed it.

    `version` is the version of the registry's settings in the registry `incarnation`. The home of
    the limit keeps the newest rule, and ignores the rules of processes that know an older version.
    In a process that follows no registry, `version` is 0.
    """

    running: int | None = None
    windows: tuple[tuple[str, int, float, tuple[float, ...]], ...] = ()
    """For each rate its name (the period and the zone), its count, its period in milliseconds, and
    the midnights near now."""
    incarnation: str = ""
    version: int = 0

    def replaces(self, other: Rule) -> bool:
        """Return whether a home that follows the rule `other` must follow this one instead.

        Rules of one version may differ, if processes declare the limit in different ways: the
        latest call wins.
        """
        if not self.version:
            return not other.version
        return self.incarnation != other.incarnation or self.version >= other.version

    def at(self, now: Rule) -> Rule:
        """Return this rule with the midnights of `now`, a rule that was made later."""
        midnights = {name: near for name, _, _, near in now.windows}
        windows = (
            (name, count, period_ms, midnights.get(name, near))
            for name, count, period_ms, near in self.windows
        )
        return msgspec.structs.replace(self, windows=tuple(windows))


class HoldRequest(msgspec.Struct, frozen=True):
    """One call of a holder to the home of a limit: all places that it has there, and what it wants.

    A holder is one queue partition in one worker process. Its name, `holder`, begins with the name
    of the process. `turn` grows with every call of the holder, so that a call that arrives late
    changes nothing. Each item of a remote worker is a holder of its own, whose `turn` is 0: its
    calls may come from several servers, and all these calls count. When a place is free, the home
    rings the bell of partition `bell`. `server` is the name of the server that answered this
    process's last call, or empty.
    """

    limit: str
    rule: Rule
    holder: str
    turn: int
    lease_ms: int
    asks: list[Ask]
    bell: int = 0
    server: str = ""


def process_of(holder: str) -> str:
    """Return the process to which a holder belongs: `a/b` for the holder `a/b/7/c0ffee`."""
    parts = holder.rsplit("/", 2)
    return parts[0] if len(parts) == 3 else holder


class Granted(msgspec.Struct, frozen=True):
    """The answer for one key: the holder gets `places` more places.

    `places` is negative if the holder's lease had ended and the home gave its unused places to
    others. With `others`, the holder returns each place whose item has ended, because other holders
    wait for the key or an operator lowered the limit. A holder that waits may ask again in
    `wait_ms`. If a place is free earlier, the home rings the bell.
    """

    key: str
    places: int = 0
    others: bool = False
    wait_ms: float = 0.0


class HoldAnswer(msgspec.Struct, frozen=True):
    """The answer of a limit's home: what it granted for each key, in the order of the request.

    `server` names the server that answered. After a restart or a fail-over of this server, the home
    grants no place for `quiet_ms`. A home that `is_new` has recorded nothing: the caller must make
    it durable with `PlaceStore.confirm` and then repeat the call (`hold_places` does both).
    """

    server: str
    granted: list[Granted]
    quiet_ms: float = 0.0
    is_new: bool = False


class Offer(NamedTuple):
    """A free place at a limit.

    The limit's home keeps it for a moment for a partition that waits.
    """

    partition: int
    limit: str
    key: str


class KeyUse(msgspec.Struct, frozen=True):
    """How one key of a limit is used now.

    `running` items run or have an unused place, and holders wait for `waiting` more places.
    """

    limit: str
    key: str
    running: int
    waiting: int


class LimitUse(msgspec.Struct, frozen=True):
    """A limit that workers announced within a day, and how it is used now."""

    limit: Limit
    """As the actions declare it."""
    actions: tuple[str, ...]
    changed: str = ""
    """What an operator allows instead, such as "5, 20/s"; empty if nobody has changed it."""
    uses: tuple[KeyUse, ...] = ()
    """The keys at which holders wait for the most places."""

    @property
    def in_force(self) -> Limit:
        """The limit as it holds now: as an operator has changed it, or else as it is declared."""
        return self.limit.allowing(self.changed) if self.changed else self.limit


class DeclaredLimits(msgspec.Struct, frozen=True):
    """The limits of one process, and the names of each action's limits."""

    limits: dict[str, Limit] = {}
    actions: dict[str, tuple[str, ...]] = {}

    def of(self, action: str) -> tuple[Limit, ...]:
        """Return the limits of an action, ordered by name."""
        names = self.actions.get(action, ())
        return tuple(self.limits[name] for name in names if name in self.limits)


@dataclass
class LimitBook:
    """The limits that a worker process knows. All its partitions share this object.

    `own` are the limits that the process's actions declare.
    """

    own: DeclaredLimits
    changed: Mapping[str, Limit] = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    version: tuple[str, int] = ("", 0)
    """The registry's incarnation and the version of its settings from which `changed` comes."""

    @property
    def is_empty(self) -> bool:
        """Whether no action of the process has a limit."""
        return not self.own.limits

    def change(self, amounts: Mapping[str, str], controls: Controls = NO_CONTROLS) -> bool:
        """Use other amounts for these limits: `{"mail": "5, 20/s"}`.

        Returns whether any amount changed. All other limits allow what their actions declare.
        `controls` were read together with the amounts.
        """
        self.version = controls.incarnation, controls.version
        changed = {}
        for name, text in amounts.items():
            if limit := self.own.limits.get(name):
                changed[name] = limit.allowing(text)
        is_new = changed != self.changed
        self.changed = changed
        return is_new

    def limit(self, name: str) -> Limit:
        """Return a limit with the values that an operator has set, or else as it is declared."""
        return self.changed.get(name) or self.own.limits[name]

    def has_limits(self, action: str) -> bool:
        """Return whether items of the action need places."""
        return bool(self.own.actions.get(action))

    def needs(self, lane: str) -> Needs:
        """Return the needs of a lane, without limits that its action does not have any more."""
        base, needs = lane_and_needs(lane)
        own = self.own.actions.get(base.partition("/")[0], ())
        return tuple(need for need in needs if need.limit in own)

    def lane_for(self, lane: str, action: str, tenant: str, item: object) -> str:
        """Return the lane of an item that was claimed from `lane`.

        This is `lane` itself if its name contains all limits of the action.
        """
        names = self.own.actions.get(action, ())
        base, needs = lane_and_needs(lane)
        if {need.limit for need in needs} >= {*names}:
            return lane
        counting = [self.own.limits[name].counting for name in names]
        return lane_with(base, needs_of(counting, action, tenant, item))


class PlaceStore(Protocol):
    """The homes of limits: they grant places.

    Each limit has a slot of its own, with all its keys.
    """

    async def hold(self, request: HoldRequest) -> HoldAnswer:
        """Record which places a holder has, renew its lease, and grant it free places."""

    async def confirm(self, limit: str, server: str) -> None:
        """Make the limit's home durable. From then on, it grants places at this server.

        Otherwise a fail-over could lose a home with all its grants, and the next server would
        conclude that nobody has used the limit yet.
        """

    async def free(self, process: str, limits: Sequence[str]) -> int:
        """Free all places of a process that is dead. Returns the number of these places.

        The names of all holders of the process begin with `process`.
        """

    async def use(self, limit: str, most: int) -> list[KeyUse]:
        """Return how up to `most` keys of a limit are used, those with most waiting first."""

    async def declare(self, process: str, declared: DeclaredLimits, ttl_ms: int) -> DeclaredLimits:
        """Announce the limits of a process for `ttl_ms`, and return all announced limits.

        If another live process declares a limit in another way, that declaration stays: the caller
        must compare the returned limits with its own.
        """

    async def declared(self) -> DeclaredLimits:
        """Return the limits that workers announced within a day."""


async def hold_places(store: PlaceStore, request: HoldRequest) -> HoldAnswer:
    """Send a request to the home of a limit. If the home is new, confirm it first."""
    answer = await store.hold(request)
    if not answer.is_new:
        return answer
    await store.confirm(request.limit, answer.server)
    return await store.hold(request)


async def limits_in_use(store: PlaceStore, changed: Mapping[str, str], keys: int) -> list[LimitUse]:
    """Return the announced limits, ordered by name, with up to `keys` keys of each."""
    declared = await store.declared()
    found = []
    for name, limit in sorted(declared.limits.items()):
        actions = tuple(sorted(each for each, names in declared.actions.items() if name in names))
        uses = tuple(await store.use(name, keys))
        found.append(LimitUse(limit, actions, changed.get(name, ""), uses))
    return found
