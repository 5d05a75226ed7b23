"""News of the registry over Redis, for fleets too large to ask the store all the time.

The leader tells, every other process listens. News is never the truth: the leader signs it with the
secret in META, whoever reads the store can check the signature, and whoever has only Redis can
neither make news nor change it. A signature (a MAC) binds:

    pair     incarnation, closed time, version
    entry    incarnation, and the whole entry, its version included

The two are signed as different kinds, so one cannot be passed off as the other. A process reads
nothing before it has checked the signature, ignores and logs what fails, and then follows the store
as if Redis were silent. `closed_time` says why an old pair that comes back does no harm.

A process without news asks the store, so seldom that the whole fleet asks at most `ASKS_S` times a
second. To place ids between two such questions, the leader then keeps the closed time further ahead
of now: as far as the silence is long, at most twice the time between two questions. New epochs
begin that much later: without news, layouts stand still.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from random import Random
from typing import Protocol

import msgspec

from heatsink.errors import HeatsinkError, Misconfigured, Retryable
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.primitives.clock import Clock

from .closed_time import HORIZON_MS, HORIZON_MS_MAX, furthest_closed_time
from .decisions import LogEntry, Meta, RegistryStore

MAC_BYTES = 16
PAIR, ENTRY = b"heatsink pair", b"heatsink entry"
_ENTRY = msgspec.msgpack.Decoder(LogEntry)
logger = logging.getLogger("heatsink")
FOLLOW_S = 0.1
ASKS_S = 200.0  # questions to the store per second, of all who follow without news
STANDBY_ASKS_S = 100.0  # and of all coordinators that wait to lead
LISTENS_S = 50_000.0  # questions to the relay per second, of the whole fleet
LISTEN_S_MAX = 0.2
STEADY_S = 30.0  # the store is asked this seldom while news comes: for the clock, and for META
SAY_AGAIN = 20  # entries that a new leader repeats: its predecessor may have died before telling
PAUSE_S = 0.5
WARN_S = 300.0  # the same warning about news comes no more often than this
IGNORED = "It is ignored: this process follows the data store, as if Redis were silent."
FORGED = (
    "News of the registry on Redis was forged or damaged: the signature of a {what} is wrong. "
    f"{IGNORED} Find out who else can write to this Redis, and give Heatsink users of its own: "
    "see docs/how-to/redis.md#forged-news"
)
FORGED_PAIR = FORGED.format(what="pair (closed time, version)")
FORGED_ENTRY = FORGED.format(what="log entry")
FOREIGN = (
    "News of the registry on Redis is of another data store, or of this one before a rebuild. "
    f"{IGNORED} If two deployments share this Redis, give each a prefix= of its own; after "
    "heatsink fsck --rebuild, restart the processes that ran before it"
)
TOO_FAR = (
    "News of the registry on Redis has a closed time that is too far ahead of the data store's "
    f"time. {IGNORED} Its signature is right, so it was made with the secret in the store: check "
    "the clocks with heatsink doctor, and who can read the store. heatsink fsck --rebuild makes a "
    "new secret"
)


class News(msgspec.Struct, frozen=True):
    """A pair (closed time, version) that META once held, and entries of the log up to it.

    The pair is whole, but it may be old; entries may be missing.
    """

    closed_ms: int
    version: int
    entries: tuple[LogEntry, ...] = ()


class Seal:
    """Signs and checks the news of one incarnation."""

    def __init__(self, meta: Meta) -> None:
        if len(meta.secret) != SECRET_BYTES:
            raise Misconfigured(
                "the registry has no secret to sign its news with: stop all processes, "
                "run heatsink fsck URL --rebuild, which makes one, and start them again"
            )
        self._secret = meta.secret
        self._incarnation = meta.incarnation.encode()

    def pair(self, closed_ms: int, version: int) -> bytes:
        """Readable: "closed time|version|incarnation|signature"."""
        text = b"%d|%d|%b" % (closed_ms, version, self._incarnation)
        return b"%b|%b" % (text, self._mac(PAIR, text).hex().encode())

    def opened_pair(self, sealed: bytes) -> News | None:
        """None if it is not as the leader of this incarnation wrote it."""
        text, _, mac = sealed.rpartition(b"|")
        if not compare_digest(mac, self._mac(PAIR, text).hex().encode()):
            return None
        closed_ms, version, _ = text.split(b"|", 2)
        return News(int(closed_ms), int(version))

    def is_foreign(self, sealed: bytes) -> bool:
        """Whether a pair that does not open says itself that it is of another incarnation."""
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
            return None  # of a release that writes what we cannot read: the store fills the gap

    def _mac(self, kind: bytes, body: bytes) -> bytes:
        """Of our incarnation, whatever the body says: its length first, so that nothing shifts."""
        bound = b"%d|%b|%b" % (len(self._incarnation), self._incarnation, body)
        return blake2b(bound, key=self._secret, person=kind, digest_size=MAC_BYTES).digest()


class NewsStore(Protocol):
    """Carries what was signed. May lose everything, fall back to what it held, or be lied to."""

    async def publish(self, log: str, entries: Mapping[int, bytes], pair: bytes) -> None:
        """Add entries, by version, to the log of an incarnation; then set the pair, in one write.

        All of it was read in the store: committed.
        """

    async def pair(self) -> bytes | None:
        """The newest pair, if there is one."""

    async def entries(self, log: str, after: int, upto: int) -> list[bytes]:
        """Those that are there of the versions from `after + 1` to `upto`, in order."""


class NewsListener:
    """Takes news in, and knows for how long there was none."""

    def __init__(self, news: NewsStore, clock: Clock, rng: Random) -> None:
        self._news = news
        self._clock = clock
        self._rng = rng
        self._closed_ms = 0
        self._heard_s = clock.monotonic_s()
        self._asked_s = clock.monotonic_s()
        self._jitter = 1.0
        self._warned_s: dict[str, float] = {}
        self._doubted: Meta | None = None  # as it was when news first was too far ahead of it
        self.told_s: float | None = None
        """When a leader told news last, on the monotonic clock; None: not yet."""

    async def newest(self, after: int, meta: Meta, store_ms: int) -> News | None:
        """Genuine news that is newer than all before; None if there is none.

        `meta` is as the store last had it, `store_ms` what the store's time must be by now.
        """
        seal = Seal(meta)
        try:
            sealed = await self._news.pair()
            pair = None if sealed is None else self._opened(sealed, seal, meta, store_ms)
            if pair is None or pair.closed_ms <= self._closed_ms:
                return None
            entries = await self._entries(seal, meta.incarnation, after, pair.version)
        except HeatsinkError:
            return None
        is_first = not self._closed_ms  # which may be old
        self._closed_ms, self._heard_s = pair.closed_ms, self._clock.monotonic_s()
        self.told_s = None if is_first else self._heard_s
        return News(pair.closed_ms, pair.version, entries)

    async def check(self) -> None:
        """A relay that is down will be back; one that refuses our login is told at once."""
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
        elif meta is not self._doubted:  # the store was asked since, and does not justify it
            self._warn(TOO_FAR)
        return None

    async def _entries(
        self, seal: Seal, incarnation: str, after: int, upto: int
    ) -> tuple[LogEntry, ...]:
        """One that is forged is left out: then there is a gap, and the store fills gaps."""
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
        """How long to wait before listening again."""
        return max(FOLLOW_S, min(servers / LISTENS_S, LISTEN_S_MAX))

    def should_ask(self, servers: int, well_informed: bool) -> bool:
        """Whether it is this process's turn to ask the store."""
        interval_s = max(STEADY_S if well_informed else FOLLOW_S, servers / ASKS_S)
        return self._clock.monotonic_s() - self._asked_s >= interval_s * self._jitter

    def note_asked(self) -> None:
        self._asked_s = self._clock.monotonic_s()
        self._jitter = self._rng.uniform(0.5, 1.5)

    def horizon_ms(self, servers: int) -> int:
        """How far ahead of now the closed time should be."""
        silent_s = self._clock.monotonic_s() - self._heard_s
        return max(HORIZON_MS, int(1000 * min(silent_s, _unasked_s(servers))))

    def standby_s(self, servers: int, at_least_s: float) -> float:
        """How long a coordinator that does not lead waits before it looks again."""
        return max(at_least_s, self._rng.uniform(0.5, 1.5) * servers / STANDBY_ASKS_S)


def _unasked_s(servers: int) -> float:
    """For how long the store may go unasked without news: twice as long as between two turns."""
    return 2 * servers / ASKS_S


class Teller:
    """Publishes what the store has committed. A relay that fails is left alone for a moment."""

    def __init__(self, news: NewsStore, store: RegistryStore, clock: Clock) -> None:
        self._news = news
        self._store = store
        self._clock = clock
        self._told: int | None = None
        self._resume_s = float("-inf")

    async def tell(self, meta: Meta) -> None:
        if self._clock.monotonic_s() < self._resume_s:
            return
        try:
            seal, untold = Seal(meta), await self._untold(meta.version)
            entries = {entry.version: seal.entry(entry) for entry in untold}
            pair = seal.pair(meta.closed_ms, meta.version)
            await self._news.publish(meta.incarnation, entries, pair)
        except HeatsinkError:
            self._told = None
            self._resume_s = self._clock.monotonic_s() + PAUSE_S
        else:
            self._told = meta.version

    async def _untold(self, version: int) -> list[LogEntry]:
        told = max(version - SAY_AGAIN, 0) if self._told is None else self._told
        return await self._store.log(told, version) if told < version else []
