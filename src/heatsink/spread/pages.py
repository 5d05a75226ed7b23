"""What a log returns: receipts, entries, and pages with signed cursors."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from heatsink.errors import InvalidCursor, InvalidSetting
from heatsink.primitives.checks import check_whole, shown
from heatsink.primitives.ids import IdScheme

from .store import Row

Order = Literal["newest", "oldest"]
LIMIT_MAX = 1_000
TAG_BYTES = 8


class Identified(msgspec.Struct, frozen=True):
    """Something with an id, which is decoded when it is first asked for."""

    raw: bytes
    scheme: IdScheme

    @property
    def id(self) -> Any:
        """A UUID, a ULID as text or a Snowflake as a number: the deployment's kind."""
        return self.scheme.value(self.raw)

    @property
    def time(self) -> datetime:
        """The time in the id, in UTC."""
        return datetime.fromtimestamp(self.scheme.time_ms(self.raw) / 1000, UTC)


class Receipt(Identified, frozen=True):
    """An acknowledged append. `append(key, body, id=receipt.id)` is the same append again.

    `is_new` is False if the entry existed already, which only happens with an `id` of the caller.
    An earlier attempt of the same call, whose answer was lost, may have written it.
    """

    key: str
    is_new: bool = True

    def __repr__(self) -> str:
        return f"Receipt(key={self.key!r}, id={self.id})"


class Entry(Identified, frozen=True):
    """One entry of a log."""

    body: bytes

    def __repr__(self) -> str:
        return f"Entry(id={self.id}, body={self.body!r})"


class Page(msgspec.Struct, frozen=True):
    """Entries in order. `cursor` is where the next page starts; None on the last page."""

    entries: list[Entry]
    cursor: str | None


def entry_of(row: Row, scheme: IdScheme) -> Entry:
    return Entry(row.raw, scheme, row.body)


def check_limit(limit: object) -> int:
    return check_whole("limit", limit, 1, LIMIT_MAX)


def check_order(order: object) -> bool:
    """Whether the newest entries come first."""
    if order not in ("newest", "oldest"):
        raise InvalidSetting(
            f"order must be 'newest' or 'oldest', not {shown(order)}", field="order"
        )
    return order == "newest"


class Cursors:
    """A cursor is the page's last id, signed for one key and order; it survives layout changes."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    def write(self, key: str, order: Order, raw: bytes) -> str:
        return urlsafe_b64encode(self._tag(key, order, raw) + raw).decode().rstrip("=")

    def read(self, key: str, order: Order, cursor: object) -> bytes:
        if not isinstance(cursor, str):
            raise InvalidCursor(
                f"cursor must be a str from page.cursor, not {type(cursor).__name__}"
            )
        try:
            data = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except ValueError:
            raise InvalidCursor(f"cursor {cursor[:40]!r} is damaged: pass page.cursor") from None
        tag, raw = data[:TAG_BYTES], data[TAG_BYTES:]
        if tag != self._tag(key, order, raw):
            raise InvalidCursor(
                f"cursor {cursor[:40]!r} was not made for this key and order: pass page.cursor"
            )
        return raw

    def _tag(self, key: str, order: Order, raw: bytes) -> bytes:
        text = f"{order}\0{key}\0".encode()
        return blake2b(text + raw, key=self._seed, digest_size=TAG_BYTES).digest()
