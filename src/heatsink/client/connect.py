"""From a URL to a client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from heatsink.checks import shown
from heatsink.clock import Clock, SystemClock
from heatsink.errors import InvalidSetting
from heatsink.stores.memory import memory_stores
from heatsink.stores.sqlite import sqlite_stores
from heatsink.stores.stores import Stores
from heatsink.stores.throttled import PartitionLimit, throttled

from .chance import fresh_random
from .heatsink import Heatsink
from .settings import Settings

EXAMPLES = "memory:// or sqlite:///chat.db (sqlite:////absolute/path.db)"


def connect(
    url: str,
    *,
    limit: PartitionLimit | None = None,
    clock: Clock | None = None,
    rng: Random | None = None,
    **settings: Any,
) -> Heatsink:
    """A client of the store at `url`, to be used with `async with`.

    `settings` are the fields of `Settings`. `limit` puts a limit on every partition key, as
    DynamoDB has: to try things out on a laptop.
    """
    clock = clock or SystemClock()
    stores = open_stores(url, clock)
    if limit is not None:
        stores = throttled(stores, limit, clock)
    return Heatsink(stores, _settings(settings), clock, rng or fresh_random())


def _settings(values: dict[str, Any]) -> Settings:
    known = Settings.__struct_fields__
    for name in values:
        if name not in known:
            raise InvalidSetting(f"connect() has no setting {name!r}: it takes {', '.join(known)}")
    return Settings(**values)


def open_stores(url: str, clock: Clock, must_exist: bool = False) -> Stores:
    """What a URL names. With `must_exist`, a file is not made if it is missing."""
    if not isinstance(url, str):
        raise InvalidSetting(f"url must be a str like {EXAMPLES}, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidSetting(f"url {shown(url)} cannot be read ({error}): use {EXAMPLES}") from None
    opener = OPENERS.get(parts.scheme)
    if opener is None:
        raise InvalidSetting(f"url {url[:80]!r} names no store we have: use {EXAMPLES}")
    if parts.query or parts.fragment or parts.netloc:
        raise InvalidSetting(f"url {url[:80]!r} has parts that no store reads: use {EXAMPLES}")
    return opener(parts.path, clock, must_exist)


def _memory(path: str, clock: Clock, must_exist: bool) -> Stores:
    if must_exist:
        raise InvalidSetting("memory:// is gone with its process: name a store that lasts")
    if path not in ("", "/"):
        raise InvalidSetting("memory:// takes no path: it forgets everything when it is closed")
    return memory_stores(clock)


def _sqlite(path: str, clock: Clock, must_exist: bool) -> Stores:
    file = Path(path[1:])
    try:
        _check_file(file, must_exist)
    except (OSError, ValueError) as error:
        raise InvalidSetting(f"url names no usable file ({error}): use {EXAMPLES}") from None
    return sqlite_stores(file, clock)


def _check_file(file: Path, must_exist: bool) -> None:
    if must_exist and not file.is_file():
        raise InvalidSetting(f"there is no database {file}: check the url")
    if file.name in ("", ":memory:") or file.is_dir():
        raise InvalidSetting(f"url must name a file, as in {EXAMPLES}")
    if not file.absolute().parent.is_dir():
        raise InvalidSetting(f"there is no folder {file.parent} for the database: make it first")


OPENERS: dict[str, Callable[[str, Clock, bool], Stores]] = {"memory": _memory, "sqlite": _sqlite}
