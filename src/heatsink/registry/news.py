"""News of the registry, for fleets too large to ask the store all the time. Never the truth.

The leader signs what it tells with the secret in META. Whoever reads the store can check it, and
whoever has only the relay can neither make news nor change any. What a signature (a MAC) binds:

    pair     incarnation, closed time, version
    entry    incarnation, and the whole entry, its version included

The two are signed as different kinds, so one cannot be passed off as the other. Nothing is read
before its signature has been checked. `rules` says why an old pair that comes back does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from hmac import compare_digest
from typing import Protocol

import msgspec

from heatsink.errors import Misconfigured

from .decision import LogEntry, Meta

SECRET_BYTES = 32
MAC_BYTES = 16
PAIR, ENTRY = b"heatsink pair", b"heatsink entry"
_ENTRY = msgspec.msgpack.Decoder(LogEntry)


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
