"""Ids that contain their time: made once, before the first attempt, and kept for every retry.

Inside Heatsink an id is its sortable bytes (`raw`). An `IdScheme` converts the ids of callers to
`raw` and back. One deployment has one scheme: ids of two kinds do not sort together.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from struct import Struct
from typing import Any, ClassVar, Protocol, runtime_checkable
from uuid import UUID

from heatsink.errors import InvalidId, InvalidSetting, Unavailable

from .checks import shown

TIME_MS_MAX = (1 << 48) - 1
COUNTER_BITS = 42
TAIL_BITS = 32
STEP_BITS = 32
ROOM = (1 << 62) - 1  # what is below the variant of a UUID
LOWER_HALF = ~(1 << 61)
FULL = "all ids of this millisecond are used"
UUID_VARIANT = 0b10 << 62
pack_halves = Struct(">QQ").pack
TWITTER_EPOCH_MS = 1_288_834_974_657
SNOWFLAKE_DIGITS_MAX = 19
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
CROCKFORD_DIGITS = {letter: digit for digit, letter in enumerate(CROCKFORD)}


@runtime_checkable
class IdScheme(Protocol):
    """One kind of id, and how to convert it. `raw` bytes sort in the same order as the ids."""

    @property
    def name(self) -> str: ...

    def raw(self, value: object) -> bytes: ...

    def value(self, raw: bytes) -> Any: ...

    def from_text(self, text: str) -> Any:
        """Return the id that this text stands for, as in a URL or in JSON."""

    def time_ms(self, raw: bytes) -> int: ...

    def first_raw(self, time_ms: int) -> bytes:
        """Return the smallest id of a millisecond. Ranges of time use it as a bound."""

    def from_parts(self, time_ms: int, counter: int, tail: int) -> bytes:
        """Return an id made of its time, a counter of 42 bits and a random tail of 32 bits."""


def _cure(text: str) -> str:
    try:
        UUID(text)
    except ValueError:
        return ": this is not the text of a UUID. Take receipt.id, or leave it out of a write"
    return ": make it with uuid.UUID(text)"


@dataclass(frozen=True)
class Uuid7:
    """UUID version 7 (RFC 9562), as `uuid.UUID`."""

    name: ClassVar[str] = "uuid7"

    def raw(self, value: object) -> bytes:
        if not isinstance(value, UUID):
            cure = _cure(value) if isinstance(value, str) else ""
            raise InvalidId(wrong=f"must be a uuid.UUID (version 7), not {shown(value)}{cure}")
        if value.version != 7:
            raise InvalidId(
                wrong=f"{value} is a UUID of version {value.version}; expected version 7, as in a "
                "receipt. `append` without id makes a new one; so does uuid.uuid7() (Python 3.14)"
            )
        return value.bytes

    def value(self, raw: bytes) -> UUID:
        return UUID(bytes=raw)

    def from_text(self, text: str) -> UUID:
        try:
            return UUID(text)
        except ValueError:
            raise InvalidId(
                wrong=f"{text[:40]!r} is not a UUID of version 7: take the id of an earlier "
                "answer, or leave it out of a write"
            ) from None

    def time_ms(self, raw: bytes) -> int:
        return int.from_bytes(raw[:6], "big")

    def first_raw(self, time_ms: int) -> bytes:
        return _clip_ms(time_ms).to_bytes(6, "big") + b"\x00" * 10

    def from_parts(self, time_ms: int, counter: int, tail: int) -> bytes:
        high = time_ms << 16 | 0x7000 | counter >> 30
        low = UUID_VARIANT | (counter & 0x3FFF_FFFF) << 32 | tail
        return pack_halves(high, low)


@dataclass(frozen=True)
class Ulid:
    """ULID, as its 26 characters of Crockford's base 32."""

    name: ClassVar[str] = "ulid"

    def raw(self, value: object) -> bytes:
        if not isinstance(value, str):
            raise InvalidId(wrong=f"must be a ULID of 26 characters, not {shown(value)}")
        if len(value) != 26 or not value.isascii() or value[0] > "7":
            raise InvalidId(
                wrong=f"{value[:40]!r} is not a ULID: expected 26 characters, the first from 0 to 7"
            )
        number = 0
        for letter in value.upper():
            digit = CROCKFORD_DIGITS.get(letter)
            if digit is None:
                raise InvalidId(wrong=f"{value!r} is not a ULID: {letter!r} is not in its alphabet")
            number = number << 5 | digit
        return number.to_bytes(16, "big")

    def value(self, raw: bytes) -> str:
        number = int.from_bytes(raw, "big")
        return "".join(CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))

    def from_text(self, text: str) -> str:
        return text

    def time_ms(self, raw: bytes) -> int:
        return int.from_bytes(raw[:6], "big")

    def first_raw(self, time_ms: int) -> bytes:
        return _clip_ms(time_ms).to_bytes(6, "big") + b"\x00" * 10

    def from_parts(self, time_ms: int, counter: int, tail: int) -> bytes:
        return ((time_ms << 80) | (counter << 38) | tail).to_bytes(16, "big")


@dataclass(frozen=True)
class Snowflake:
    """Snowflake, as a positive int of 63 bits whose upper 41 are milliseconds since an epoch.

    The low bits of a Snowflake name the machine that minted it. So Heatsink mints no Snowflakes:
    callers pass their own.
    """

    epoch_ms: int = TWITTER_EPOCH_MS

    def __post_init__(self) -> None:
        is_whole = isinstance(self.epoch_ms, int) and not isinstance(self.epoch_ms, bool)
        if not is_whole or not 0 <= self.epoch_ms < TIME_MS_MAX:
            raise InvalidSetting(
                f"epoch_ms must be an int, milliseconds since 1970, not {shown(self.epoch_ms)}",
                field="epoch_ms",
            )

    @property
    def name(self) -> str:
        """The scheme's name, which includes the epoch.

        With another epoch, the same id would have another time.
        """
        return f"snowflake since {self.epoch_ms}"

    def raw(self, value: object) -> bytes:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidId(wrong=f"must be a Snowflake (an int), not {shown(value)}")
        if not 0 <= value < 1 << 63:
            raise InvalidId(wrong=f"{value} is not a Snowflake: expected 0 to 2**63 - 1")
        return value.to_bytes(8, "big")

    def value(self, raw: bytes) -> int:
        return int.from_bytes(raw, "big")

    def from_text(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= SNOWFLAKE_DIGITS_MAX):
            raise InvalidId(wrong=f"{text[:40]!r} is not a Snowflake: expected 0 to 2**63 - 1")
        return int(text)

    def time_ms(self, raw: bytes) -> int:
        return (int.from_bytes(raw, "big") >> 22) + self.epoch_ms

    def first_raw(self, time_ms: int) -> bytes:
        ticks = min(max(time_ms - self.epoch_ms, 0), (1 << 41) - 1)
        return (ticks << 22).to_bytes(8, "big")

    def from_parts(self, time_ms: int, counter: int, tail: int) -> bytes:  # noqa: ARG002
        raise InvalidId(wrong="is missing: this deployment uses Snowflake ids, which callers mint")


def scheme_named(name: str) -> IdScheme:
    """Return the scheme with this name. META of a store holds the name of its scheme."""
    if name.startswith("snowflake since "):
        return Snowflake(int(name.removeprefix("snowflake since ")))
    for scheme in (Uuid7(), Ulid()):
        if scheme.name == name:
            return scheme
    raise InvalidSetting(f"no id scheme is named {name!r}: upgrade Heatsink")


def _clip_ms(time_ms: int) -> int:
    return min(max(time_ms, 0), TIME_MS_MAX)


class Minter:
    """Mints ids that only grow, whatever the clock does. Their times are below the horizon.

    The minter works for any scheme. Within a millisecond it increments a counter of 42 bits, which
    starts at a random number in its lower half. The minter belongs to one event loop and is not
    thread-safe.
    """

    def __init__(self, scheme: IdScheme, rng: Random) -> None:
        self._from_parts = scheme.from_parts
        self._random_bits = rng.getrandbits
        self._last_ms = -1
        self._last = self._end = 0

    def mint(self, now_ms: int, horizon_ms: int) -> tuple[bytes, int]:
        """Mint an id. Returns its raw bytes and its time.

        The time is now, or as close to now as the horizon and earlier ids allow.
        """
        self._advance(now_ms, horizon_ms, 1)
        tail = self._random_bits(TAIL_BITS)
        return self._from_parts(self._last_ms, self._last, tail), self._last_ms

    def _advance(self, now_ms: int, horizon_ms: int, step: int) -> None:
        time_ms = now_ms if now_ms < horizon_ms else horizon_ms - 1
        if time_ms > self._last_ms:
            self._start(time_ms)
            return
        self._last += step
        if self._last >= self._end:
            if self._last_ms + 1 >= horizon_ms:
                raise Unavailable(f"{FULL}, and the horizon does not advance: retry")
            self._start(self._last_ms + 1)

    def _start(self, time_ms: int) -> None:
        self._last, self._end = self._random_bits(COUNTER_BITS - 1), 1 << COUNTER_BITS
        self._last_ms = time_ms


class SteppingMinter(Minter):
    """A faster minter for ids of 16 bytes whose lower 62 bits are free: UUIDs and ULIDs.

    Within a millisecond, each id is a random step above the id before. After the first id of a
    millisecond, there is room for 2**29 more.
    """

    def mint(self, now_ms: int, horizon_ms: int) -> tuple[bytes, int]:
        step = self._random_bits(STEP_BITS) + 1
        raw = self._last + step
        if now_ms > self._last_ms or raw >= self._end:
            self._advance(now_ms, horizon_ms, step)
            raw = self._last
        self._last = raw
        return raw.to_bytes(16, "big"), self._last_ms

    def _start(self, time_ms: int) -> None:
        counter, tail = self._random_bits(COUNTER_BITS), self._random_bits(TAIL_BITS)
        first = int.from_bytes(self._from_parts(time_ms, counter, tail), "big")
        self._last, self._end = first & LOWER_HALF, first | ROOM
        self._last_ms = time_ms


def minter_of(scheme: IdScheme, rng: Random) -> Minter:
    """Return the minter for a scheme.

    If the application defines the scheme, every id is made by the scheme's `from_parts`.
    """
    return (SteppingMinter if type(scheme) in (Uuid7, Ulid) else Minter)(scheme, rng)
