"""Random keys, and what must hold for each: in the codec, on the way through a path, in a store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from urllib.parse import quote

import msgspec

from heatsink.errors import InvalidKey
from heatsink.primitives.keys import KEY_BYTES_MAX, check_key, key_of, partition_of
from heatsink.server.api.requests import RouteTable
from heatsink.server.api.table import MESSAGES, ROUTES
from tests.raw_http import Line, hang_up, open_line

TRICKY = "#%/?&=+;:@~.{}[]<>|\\\"'` \t\r\n\0-_$*()!,^aA0"
BLOCKS = ((0x20, 0x7F), (0, 0x20), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000))
WORDS = ("..", ".", "%2F", "%00", "%25", "#0", "#63", "//", "%", "\u202e", "é", "e\u0301", "🔥")
LONG = 1 / 50
_encode = msgspec.json.Encoder().encode
_router = RouteTable(ROUTES)


def random_key(rng: Random) -> str:
    """Mostly short; of any characters there are, with a liking for those that mean something."""
    most = KEY_BYTES_MAX + 40 if rng.random() < LONG else 12
    return "".join(_piece(rng) for _ in range(rng.randint(1, most)))


def _piece(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(TRICKY)
    if kind < 0.5:
        return rng.choice(WORDS)
    return chr(rng.randrange(*rng.choice(BLOCKS)))


def is_right(key: str) -> bool:
    try:
        check_key(key)
    except InvalidKey:
        return False
    return True


def path_of(key: str) -> str:
    return MESSAGES.replace("{key}", quote(key, safe=""))


def check_codec(key: str, bucket: int | None) -> None:
    """A partition names one key and one bucket; a path names one key."""
    assert key_of(partition_of(key, bucket)) == (key, bucket), ascii(key)
    _, found = _router.find("GET", path_of(key))
    assert found == {"key": key}, ascii(key)


async def write_and_read(port: int, keys: Sequence[str], at_once: int = 16) -> Counter[int]:
    """Each key's conversation holds its own name and nothing else. Returns statuses of writes."""
    statuses: Counter[int] = Counter()
    lines = [await open_line(port) for _ in range(min(at_once, len(keys)))]
    try:
        await asyncio.gather(
            *(_each(line, keys[n :: len(lines)], statuses) for n, line in enumerate(lines))
        )
    finally:
        await hang_up(*lines)
    return statuses


async def _each(line: Line, keys: Iterable[str], statuses: Counter[int]) -> None:
    for key in keys:
        path = path_of(key)
        answer = await line.ask("POST", path, _encode({"body": key}))
        statuses[answer.status] += 1
        assert answer.status == (201 if is_right(key) else 400), (ascii(key), answer)
        if answer.status == 201:
            page = await line.ask("GET", path + "?limit=5")
            messages = msgspec.json.decode(page.body)["messages"]
            assert [message["body"] for message in messages] == [key], ascii(key)
