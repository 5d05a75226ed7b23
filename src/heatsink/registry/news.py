"""News of the registry over Redis, for fleets too large for every process to poll the store.

The leader publishes news, and every other process polls Redis for it. The store stays
authoritative. The leader signs news with the secret in META. Every process that can read the store
can check the signature. An attacker with access to Redis alone can neither forge nor change news. A
signature (a MAC) covers:

    pair     incarnation, closed time, version
    entry    incarnation, and the whole entry, its version included
    notice   incarnation, and the whole notice

A notice is a message of the leader to all processes that is not part of the registry, such as how
to sample heat. The notice comes with the pair, on a second line. Pairs, entries and notices are
signed as different kinds, so none of them can pass for one of another kind. A process checks the
signature before it parses anything else. News that fails the check is logged and ignored; the
process then polls the store as if Redis were down. `closed_time` proves that replaying an old pair
is harmless.

Processes without news poll the store, all together at most `ASKS_S` times a second. Between two
polls, such a process must still be able to place ids. So without news, processes keep the closed
time further ahead of now: by the time since the last news, but at most by twice the interval
between two polls. New epochs then start later by the same time. When the closed time is past, every
process that writes reads META at once, whatever the fleet's size. So after a silence of `pushed_s`
the closed time is kept `FAIL_OVER_S` further ahead: each process reads META about once before the
next leader is there. While a leader publishes, it must not keep the closed time that far ahead: it
would then have no new closed time to publish for a while, and all changes of layout would be late.
So the leader measures silence in another way: the time since the first of its own publications that
it has not heard back. By this measure, neither a stall of the leader nor news that repeats a closed
time is silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from random import Random
from typing import Protocol, TypeVar

import msgspec

from heatsink.errors import HeatsinkError, Misconfigured, Retryable
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import Hooks

from .closed_time import HORIZON_MS, HORIZON_MS_MAX, furthest_closed_time
from .decisions import LogEntry, Meta, RegistryStore

MAC_BYTES = 16
PAIR, ENTRY, NOTICE = b"heatsink pair", b"heatsink entry", b"heatsink notice"
_ENTRY = msgspec.msgpack.Decoder(LogEntry)
logger = logging.getLogger("heatsink")
FOLLOW_S = 0.1
ASKS_S = 200.0  # polls of the store per second, of all processes without news together
STANDBY_ASKS_S = 100.0  # polls of the store per second, of all standby coordinators together
LISTENS_S = 50_000.0  # looks at the relay per second, of the whole fleet: most answer from memory
LISTEN_S_MAX = 0.2
STEADY_S = 30.0  # the interval between polls of the store while news arrives: for its time and META
SAY_AGAIN = 20  # entries that a new leader republishes: its predecessor may have died before that
PAUSE_S = 0.5
WARN_S = 300.0  # the same warning about news is logged at most once per this interval
IGNORED = "This process ignores it and reads the data store instead, as if Redis were down."
FORGED = (
    "News of the registry on Redis was forged or damaged: the signature of a {what} is wrong. "
    f"{IGNORED} Find out who else can write to this Redis, and give Heatsink its own Redis users: "
    "see docs/how-to/redis.md#forged-news"
)
FORGED_PAIR = FORGED.format(what="pair (closed time, version)")
FORGED_ENTRY = FORGED.format(what="log entry")
FORGED_NOTICE = FORGED.format(what="notice")
NOTICE_S = 5.0  # without news for this long, a process no longer follows the last notice
TELLS_S = 25_000.0  # messages with news per second that all processes together get
FAIL_OVER_S = 4.0  # a usual fail-over, with some room
PUSHED_S = 1.0
UNHEARD_MAX = 100  # publications of a leader that it remembers until it hears them
MISSED = 3.0  # publications: if so many do not arrive, the leader is gone, or the subscription
FOREIGN = (
    "News of the registry on Redis is of another data store, or of this one before a rebuild. "
    f"{IGNORED} If two deployments share this Redis, set another ?prefix= in the Redis URL of one "
    "of them. After heatsink fsck --rebuild, restart the processes that ran before it"
)
TOO_FAR = (
    "News of the registry on Redis has a closed time that is too far ahead of the data store's "
    f"time. {IGNORED} Its signature is right, so its author knows the secret in the store. Check "
    "the clocks with heatsink doctor, and check who can read the store. heatsink fsck --rebuild "
    "makes a new secret"
)


LOST_S = 1.0  # a relay that fails for this long is lost: a single failed call says little
LOST = (
    "The Redis for news does not answer ({why}). Writes and reads go on, but this process polls "
    "the data store, heat reports may be missing, and new layouts take effect later. Check news= "
    "and that Redis"
)
T = TypeVar("T")


class News(msgspec.Struct, frozen=True):
    """A pair (closed time, version) that META once held, and log entries up to that version.

    META held this closed time and version at the same moment, but possibly long ago. Some entries
    may be missing.
    """

    closed_ms: int
    version: int
    entries: tuple[LogEntry, ...] = ()


class Seal:
    """Signs the news of one incarnation and checks its signatures."""

    def __init__(self, meta: Meta) -> None:
        if len(meta.secret) != SECRET_BYTES:
            raise Misconfigured(
                "the registry has no secret to sign its news with: stop all processes, "
                "run heatsink fsck URL --rebuild to make a secret, and start the processes again"
            )
        self._secret = meta.secret
        self._incarnation = meta.incarnation.encode()

    def pair(self, closed_ms: int, version: int) -> bytes:
        """Return the signed pair as text: "closed time|version|incarnation|signature"."""
        text = b"%d|%d|%b" % (closed_ms, version, self._incarnation)
        return b"%b|%b" % (text, self._mac(PAIR, text).hex().encode())

    def opened_pair(self, sealed: bytes) -> News | None:
        """Return the pair in a signed text.

        Returns None if the signature is wrong, or if the pair belongs to another incarnation.
        """
        text, _, mac = sealed.rpartition(b"|")
        if not compare_digest(mac, self._mac(PAIR, text).hex().encode()):
            return None
        closed_ms, version, _ = text.split(b"|", 2)
        return News(int(closed_ms), int(version))

    def is_foreign(self, sealed: bytes) -> bool:
        """Return whether a signed pair that `opened_pair` refused is only from another incarnation.

        Otherwise its signature is wrong.
        """
        parts = sealed.split(b"|")
        return len(parts) == 4 and parts[2] != self._incarnation

    def entry(self, entry: LogEntry) -> bytes:
        body = msgspec.msgpack.encode(entry)
        return self._mac(ENTRY, body) + body

    def opened_entry(self, sealed: bytes) -> LogEntry | None:
        mac, body = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
        if not compare_digest(mac, self._mac(ENTRY, body)):
            return None
        try:
            return _ENTRY.decode(body)
        except msgspec.MsgspecError:
            return None  # of a release with another format: it is read from the store instead

    def notice(self, body: bytes) -> bytes:
        return self._mac(NOTICE, body) + body

    def opened_notice(self, sealed: bytes) -> bytes | None:
        mac, body = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
        return body if compare_digest(mac, self._mac(NOTICE, body)) else None

    def _mac(self, kind: bytes, body: bytes) -> bytes:
        """Return the MAC of `body`, a pair or an entry (`kind`), bound to this incarnation.

        The signed bytes begin with the length of the incarnation. So two different combinations of
        incarnation and body never give the same bytes.
        """
        bound = b"%d|%b|%b" % (len(self._incarnation), self._incarnation, body)
        return blake2b(bound, key=self._secret, person=kind, digest_size=MAC_BYTES).digest()


class NewsStore(Protocol):
    """Carries signed news. It may lose news, return older news, or return forged news."""

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        """Add log entries and replace the pair, in one write.

        `log` names the log of an incarnation, and `entries` holds the signed entries by their
        version. A second line of `pair` holds the notice. Call this only for entries and a pair
        that the data store has committed.
        """

    async def pair(self, servers: int = 1, /) -> bytes | None:
        """Return the newest signed pair; None if there is none.

        `servers` is the size of the fleet. A relay may answer from memory, so that a large fleet
        does not ask it too often.
        """

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        """Return the available entries of versions `after + 1` to `upto`, in order."""


class WatchedNews:
    """Passes calls to the relay of news (Redis), and reports when the relay fails and recovers.

    If the relay fails, no call of a client fails: processes poll the store, and changes take effect
    later. So without this report, an operator would not notice the failure.
    """

    def __init__(self, news: NewsStore, clock: Clock, hooks: Hooks) -> None:
        self._news = news
        self._clock = clock
        self._hooks = hooks
        self._failing_s: float | None = None
        self._why = ""
        self.is_lost = False

    @property
    def lost(self) -> str | None:
        """Why the relay does not answer, and for how long.

        The value is None while the relay answers, and during the first `LOST_S` seconds of a
        failure.
        """
        if not self.is_lost or self._failing_s is None:
            return None
        return f"no answer for {self._clock.monotonic_s() - self._failing_s:,.0f} s ({self._why})"

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        await self._watched(self._news.publish(log, entries, pair))

    async def pair(self, servers: int = 1, /) -> bytes | None:
        return await self._watched(self._news.pair(servers))

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        return await self._watched(self._news.entries(log, after, upto))

    async def _watched(self, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except HeatsinkError as error:
            self._note_failure(error)
            raise
        self._note_answer()
        return answer

    def _note_failure(self, error: HeatsinkError) -> None:
        now_s = self._clock.monotonic_s()
        if self._failing_s is None:
            self._failing_s, self._why = now_s, str(error).removesuffix(": retry later")
        if not self.is_lost and now_s - self._failing_s >= LOST_S:
            self.is_lost = True
            self._hooks.event("news.lost", LOST.format(why=self._why), logging.WARNING)

    def _note_answer(self) -> None:
        began_s, self._failing_s = self._failing_s, None
        if self.is_lost and began_s is not None:
            self.is_lost = False
            used_s = self._clock.monotonic_s() - began_s
            self._hooks.event(
                "news.back", f"The Redis for news answers again, after {used_s:,.0f} s"
            )


class NewsListener:
    """Polls the relay (Redis) for news, checks it, and tracks the time since the last news."""

    def __init__(self, news: NewsStore, clock: Clock, rng: Random) -> None:
        self._news = news
        self._clock = clock
        self._rng = rng
        self._closed_ms = 0
        self._heard_s = clock.monotonic_s()
        self._asked_s = clock.monotonic_s()
        self._jitter = 1.0
        self._warned_s: dict[str, float] = {}
        self._doubted: Meta | None = None  # META when news was first too far ahead of it
        self._notice = b""
        self._sealed_notice = b""
        self._published: deque[tuple[int, float]] = deque()  # by this process, and not heard yet
        self.told_s: float | None = None
        """When the last news of a leader arrived, on the monotonic clock. The first news may be
        old and does not count."""

    async def newest(self, after: int, meta: Meta, store_ms: int) -> News | None:
        """Return verified news that is newer than the last news; None if there is none.

        `after` is the view's version, `meta` is META as it was last read from the store, and
        `store_ms` is an estimate of the store's time now.
        """
        seal = Seal(meta)
        try:
            told = await self._news.pair(meta.servers)
            if told is None:
                return None
            sealed, _, notice = told.partition(b"\n")
            pair = self._opened(sealed, seal, meta, store_ms)
            if pair is None or pair.closed_ms <= self._closed_ms:
                return None
            self._take_notice(notice, seal)
            entries = await self._entries(seal, meta.incarnation, after, pair.version)
        except HeatsinkError:
            return None
        is_first = not self._closed_ms  # the first pair may be old: no sign of a living leader
        self._closed_ms, self._heard_s = pair.closed_ms, self._clock.monotonic_s()
        self.told_s = None if is_first else self._heard_s
        return News(pair.closed_ms, pair.version, entries)

    def _take_notice(self, sealed: bytes, seal: Seal) -> None:
        if sealed != self._sealed_notice:
            self._sealed_notice = sealed
            opened = seal.opened_notice(sealed) if sealed else b""
            if opened is None:
                self._warn(FORGED_NOTICE)
            self._notice = opened or b""

    @property
    def notice(self) -> bytes:
        """The leader's last notice; empty if there is none, or if the last news is long ago."""
        return self._notice if self._clock.monotonic_s() - self._heard_s < NOTICE_S else b""

    async def check(self) -> None:
        """Connect to the relay once.

        Raises if the relay refuses the login. Does nothing if the relay is down.
        """
        with suppress(Retryable):
            await self._news.pair()

    def _opened(self, sealed: bytes, seal: Seal, meta: Meta, store_ms: int) -> News | None:
        pair = seal.opened_pair(sealed)
        if pair is None:
            self._warn(FOREIGN if seal.is_foreign(sealed) else FORGED_PAIR)
            return None
        if not self._is_too_far(pair.closed_ms, meta, store_ms):
            self._doubted = None
            return pair
        if self._doubted is None:
            self._doubted = meta
        elif meta is not self._doubted:  # META was read again since, and does not justify it
            self._warn(TOO_FAR)
        return None

    async def _entries(
        self, seal: Seal, incarnation: str, after: int, upto: int
    ) -> tuple[LogEntry, ...]:
        """The entries whose signature is right.

        The caller reads all other entries from the store.
        """
        if upto <= after:
            return ()
        found = await self._news.entries(incarnation, after, upto)
        opened = [seal.opened_entry(sealed) for sealed in found]
        if None in opened:
            self._warn(FORGED_ENTRY)
        return tuple(entry for entry in opened if entry is not None)

    def _is_too_far(self, closed_ms: int, meta: Meta, store_ms: int) -> bool:
        horizon_ms = max(HORIZON_MS_MAX, int(1000 * _unasked_s(meta.servers)))
        return closed_ms > furthest_closed_time(meta.closed_ms, store_ms, horizon_ms)

    def _warn(self, warning: str) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._warned_s.get(warning, float("-inf")) >= WARN_S:
            self._warned_s[warning] = now_s
            logger.warning("%s", warning)

    def pause_s(self, servers: int) -> float:
        """Return how many seconds to wait before the next look at the relay.

        Redis itself is asked far less often: see `Polls`.
        """
        return max(FOLLOW_S, min(servers / LISTENS_S, LISTEN_S_MAX))

    def should_ask(self, servers: int, well_informed: bool) -> bool:
        """Return whether this process should poll the store now.

        `well_informed` says that news keeps the horizon far enough ahead of now. A process with
        such news polls the store about every 30 s. Other processes poll more often.
        """
        interval_s = max(STEADY_S if well_informed else FOLLOW_S, servers / ASKS_S)
        return self._clock.monotonic_s() - self._asked_s >= interval_s * self._jitter

    def note_asked(self) -> None:
        self._asked_s = self._clock.monotonic_s()
        self._jitter = self._rng.uniform(0.5, 1.5)

    def note_publication(self, closed_ms: int) -> None:
        """Note that this process publishes this closed time now, so that it should hear it soon."""
        if len(self._published) < UNHEARD_MAX:
            self._published.append((closed_ms, self._clock.monotonic_s()))

    def _silent_s(self, servers: int, leads: bool) -> float:
        """How long no news has come.

        For the leader, this is how long its own publications have not come back.
        """
        if not leads:
            return self._clock.monotonic_s() - self._heard_s
        unheard = self._published
        while unheard and unheard[0][0] <= self._closed_ms:
            unheard.popleft()
        if not unheard:
            return 0.0
        return self._clock.monotonic_s() - unheard[0][1] + tells_s(servers)

    def horizon_ms(self, servers: int, leads: bool) -> int:
        """Return how far ahead of now the closed time should be, in ms.

        The longer ago the last news came, the larger the distance. It is also larger in a large
        fleet, for two reasons. A process without news polls the store rarely there, so it learns
        late of a new closed time. And the leader publishes less often there, but a process may
        still miss one publication.
        """
        silent_s = self._silent_s(servers, leads)
        told_ms = HORIZON_MS + int(2000 * (tells_s(servers) - FOLLOW_S))
        ahead_s = silent_s + (FAIL_OVER_S if silent_s > pushed_s(servers) else 0.0)
        return max(told_ms, int(1000 * min(ahead_s, _unasked_s(servers))))

    def standby_s(self, servers: int, at_least_s: float) -> float:
        """Return how many seconds a standby coordinator waits between two checks of the lease.

        The time is random, at least `at_least_s`, and longer in a larger fleet.
        """
        return max(at_least_s, self._rng.uniform(0.5, 1.5) * servers / STANDBY_ASKS_S)


def tells_s(servers: int) -> float:
    """Return how many seconds the leader waits between publications: longer in a larger fleet."""
    return max(FOLLOW_S, servers / TELLS_S)


def pushed_s(servers: int) -> float:
    """Return after how many seconds without a push a process no longer relies on pushes."""
    return max(PUSHED_S, MISSED * tells_s(servers))


def _unasked_s(servers: int) -> float:
    """An upper bound on the time between two polls of the store by a process without news.

    Such a process polls every `servers / ASKS_S` seconds on average (see `should_ask`). A random
    pause between two polls is at most 1.5 times the average, so twice the average is a safe bound.
    """
    return 2 * servers / ASKS_S


class Polls:
    """When a process polls Redis, so that a whole fleet together does so at most `per_s` times a
    second.

    In a large fleet, all processes miss the leader's pushes at the same moment. So the first poll
    comes at a random moment of the interval, and the interval is random, too.
    """

    def __init__(self, clock: Clock, rng: Random, per_s: float) -> None:
        self._clock = clock
        self._rng = rng
        self._per_s = per_s
        self._due_s: float | None = None

    def rest(self) -> None:
        """Note that no polls are needed for now."""
        self._due_s = None

    def is_due(self, servers: int, at_least_s: float = 0.0) -> bool:
        """Return whether to poll now. The interval is at least `at_least_s`."""
        now_s, even_s = self._clock.monotonic_s(), servers / self._per_s
        if even_s <= FOLLOW_S:
            even_s = 0.0  # a small fleet may poll as often as it likes
        if self._due_s is None:
            self._due_s = now_s + even_s * self._rng.random()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + max(even_s * self._rng.uniform(0.5, 1.5), at_least_s)
        return True


class Teller:
    """Publishes commits of the store as news.

    After a failure to publish, it pauses for `PAUSE_S`.
    """

    def __init__(
        self, news: NewsStore, store: RegistryStore, clock: Clock, listener: NewsListener
    ) -> None:
        """`listener` is this process's own: it should hear what is published."""
        self._news = news
        self._store = store
        self._clock = clock
        self._listener = listener
        self._told: int | None = None
        self._resume_s = float("-inf")
        self._told_s = float("-inf")
        self._telling = asyncio.Lock()

    async def tell(self, meta: Meta, notice: bytes) -> None:
        """Publish the pair in `meta`, the notice, and all log entries that are not published yet.

        The leader calls this on two schedules. A lock keeps the pairs in order. In a large fleet, a
        call soon after the last publication does nothing: the next call is soon enough.
        """
        async with self._telling:
            now_s = self._clock.monotonic_s()
            if now_s >= max(self._resume_s, self._told_s + tells_s(meta.servers) - FOLLOW_S):
                self._told_s = now_s
                self._listener.note_publication(meta.closed_ms)
                await self._tell(meta, notice)

    async def _tell(self, meta: Meta, notice: bytes) -> None:
        try:
            seal, untold = Seal(meta), await self._untold(meta.version)
            entries = {entry.version: seal.entry(entry) for entry in untold}
            pair = seal.pair(meta.closed_ms, meta.version)
            if notice:
                pair += b"\n" + seal.notice(notice)
            await self._news.publish(meta.incarnation, entries, pair)
        except HeatsinkError:
            self._told = None
            self._resume_s = self._clock.monotonic_s() + PAUSE_S
        else:
            self._told = meta.version

    async def _untold(self, version: int) -> list[LogEntry]:
        told = max(version - SAY_AGAIN, 0) if self._told is None else self._told
        return await self._store.log(told, version) if told < version else []
