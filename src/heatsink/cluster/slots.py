"""Slots in words, as ranges, and by the keys in them."""

from __future__ import annotations

import math
import re
from binascii import crc_hqx
from collections.abc import Iterable
from functools import cache

from heatsink.errors import InvalidSetting

SLOTS = 16_384
RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def parse_slots(text: str) -> frozenset[int]:
    """Return the slots in a text like `5,7-9`. Raises `InvalidSetting`."""
    found: set[int] = set()
    for word in text.split(","):
        match = RANGE.fullmatch(word.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < SLOTS:
            raise InvalidSetting(
                f"{word.strip()!r} is no slot or range from 0 to {SLOTS - 1}: use 5,7-9",
                field="pinned",
            )
        found |= {*range(first, last + 1)}
    return frozenset(found)


def as_ranges(slots: Iterable[int]) -> list[tuple[int, int]]:
    """Join slots to ranges, in ascending order."""
    found: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if found and found[-1][1] == slot - 1:
            found[-1] = found[-1][0], slot
        else:
            found.append((slot, slot))
    return found


def ranges_of(slots: Iterable[int], length: float = math.inf) -> str:
    """Return slots in words: `5, 7-9`, or the first of them if the text exceeds `length`."""
    text = ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in as_ranges(slots))
    if len(text) <= length:
        return text
    return f"{text[: text.rindex(',', 0, int(length))]}, …"


@cache
def key_in(slot: int) -> str:
    """Return the name of a key in this slot.

    A slot is the CRC-16 (XMODEM) of the text between the braces, modulo the number of slots.
    """
    names = (f"heatsink-{n}" for n in range(2**20))
    return next(f"{{{name}}}" for name in names if crc_hqx(name.encode(), 0) % SLOTS == slot)
