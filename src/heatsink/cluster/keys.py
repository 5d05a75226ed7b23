"""The data of a slot and its most used keys, found by looking at its keys.

The work is bounded: `slot_sizes` looks at no more than `KEYS_MAX` keys of a slot and
`KEYS_TOGETHER` keys in all, and at no more than `ELEMENTS` elements of a large list, hash or set.
`keys_of` ranks no more than `KEYS_RANKED` keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from redis.crc import key_slot

from heatsink.bulk.plan import LEGACY
from heatsink.errors import NoAccess, Unavailable
from heatsink.stores.redis.connection import Connection, RedisRefused
from heatsink.stores.redis.queue.keys import HOMES, QueueKeys

from .sizes import SlotSize, size_of

KEYS_MAX = 2_000
KEYS_TOGETHER = 20_000
KEYS_MIN = 20
ELEMENTS = 500
COMMANDS = 1_000  # in flight at a time
KEYS_RANKED = 1_000
PERMISSIONS = "docs/how-to/balance-a-cluster.md"


async def slot_sizes(node: Connection, slots: Sequence[int]) -> dict[int, SlotSize]:
    """Measure slots on their owner.

    Raises `Unavailable` if a slot is not there any more, and `NoAccess` if the user may not ask.
    """
    most = max(min(KEYS_MAX, KEYS_TOGETHER // max(len(slots), 1)), KEYS_MIN)
    counted = await key_counts(node, slots)
    named = await _ask(node, [("CLUSTER", "GETKEYSINSLOT", slot, most) for slot in slots])
    words = [("MEMORY", "USAGE", name, "SAMPLES", ELEMENTS) for names in named for name in names]
    sizes = iter(await _ask(node, words))
    found = {}
    for slot, names in zip(slots, named, strict=True):
        measured = [size for _ in names if (size := next(sizes)) is not None]
        is_whole = len(names) < most
        found[slot] = size_of(len(measured) if is_whole else counted[slot], measured)
    return found


async def key_counts(node: Connection, slots: Sequence[int]) -> dict[int, int]:
    """Return the number of keys in slots, from their owner."""
    counted = await _ask(node, [("CLUSTER", "COUNTKEYSINSLOT", slot) for slot in slots])
    return dict(zip(slots, counted, strict=True))


async def _ask(node: Connection, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    answers: list[Any] = []
    try:
        for at in range(0, len(commands), COMMANDS):
            some = commands[at : at + COMMANDS]
            answers += await asyncio.gather(*(node.run_together(*words) for words in some))
    except RedisRefused as refusal:
        if refusal.code == "NOPERM":
            raise NoAccess(
                "the user in URL may not measure the slots that should move (MEMORY USAGE of all "
                f"keys, CLUSTER GETKEYSINSLOT): give it the permissions in {PERMISSIONS}"
            ) from None
        raise Unavailable(f"a slot was not measured ({refusal.said}): plan again") from None
    return answers


class SlotKeys(msgspec.Struct, frozen=True):
    """Names of some keys of a slot. If `are_hottest`, they are the most used ones, in order."""

    names: tuple[str, ...]
    are_hottest: bool = False


async def keys_of(node: Connection, slot: int, most: int) -> SlotKeys:
    """Return keys of a slot: the most used ones if the server counts uses, otherwise any keys.

    Servers count the uses of keys only with an LFU policy for `maxmemory-policy`.
    """
    policy = (await node.run("INFO", "memory")).get("maxmemory_policy", "")
    counts_uses = "lfu" in policy
    looked_at = KEYS_RANKED if counts_uses else most
    try:
        names: list[bytes] = await node.run("CLUSTER", "GETKEYSINSLOT", slot, looked_at)
    except RedisRefused:  # the user may not ask, or the slot has just moved away
        return SlotKeys(())
    if counts_uses:
        try:
            found = await _ask(node, [("OBJECT", "FREQ", name) for name in names])
        except (NoAccess, Unavailable):  # the user may not ask, or a key has just gone
            counts_uses = False
        else:
            uses = [int(each or 0) for each in found]
            ranked = sorted(zip(uses, names, strict=True), reverse=True)
            names = [name for _, name in ranked]
    return SlotKeys(tuple(map(text_or_hex, names[:most])), counts_uses)


def text_or_hex(name: bytes) -> str:
    """Return the name of a key for people. Bytes that are not text become hexadecimal digits."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return f"0x{name.hex()}"


def queue_slots(partitions: int) -> frozenset[int]:
    """Return the slots of Heatsink's queue: its partitions, batches, limits and fleet."""
    keys = QueueKeys()
    names = [keys.partition(number) for number in range(partitions)]
    names += [f"{{batch_{n}}}" for n in range(HOMES)] + [f"{{limit_{n}}}" for n in range(HOMES)]
    names += [keys.newest(), keys.fleet("plan"), keys.partition(LEGACY)]
    return frozenset(key_slot(name.encode()) for name in names)
