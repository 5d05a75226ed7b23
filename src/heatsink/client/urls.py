"""The URLs of stores: check them, and open the store that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown, shown_url
from heatsink.primitives.clock import Clock
from heatsink.stores.memory import memory_stores
from heatsink.stores.sqlite import sqlite_stores
from heatsink.stores.sqlite.alone import SqliteAlone
from heatsink.stores.stores import Stores

EXAMPLES = (
    "memory://, sqlite:///chat.db (sqlite:////absolute/path.db) or "
    "dynamodb://messages?region=eu-west-1"
)
REDIS_IS_NONE = "; a Redis carries news and bulk actions: news=… (--news), queue=… (--queue)"
Opener = Callable[[SplitResult, Clock, bool], Stores]


def open_stores(url: str, clock: Clock, must_exist: bool = False) -> Stores:
    """Open the store at `url`.

    If the file of the store is missing, create it. With `must_exist`, raise `InvalidSetting`
    instead.
    """
    if not isinstance(url, str):
        raise InvalidSetting(
            f"url must be a str like {EXAMPLES}, not {type(url).__name__}", field="url"
        )
    try:
        parts = urlsplit(url)
        opener = OPENERS.get(parts.scheme)
    except ValueError:  # whose text may show a password
        raise InvalidSetting(
            f"url {shown(shown_url(url))} cannot be read: use {EXAMPLES}", field="url"
        ) from None
    if opener is None:
        hint = REDIS_IS_NONE if parts.scheme.startswith(("redis", "valkey")) else ""
        raise InvalidSetting(
            f"url {shown_url(url)[:80]!r} names no store: use {EXAMPLES}{hint}", field="url"
        )
    if parts.scheme == "sqlite":
        check_slashes("url", url)
    elif parts.scheme == "memory":
        check_memory("url", url)
    return opener(parts, clock, must_exist)


def check_slashes(name: str, url: str) -> None:
    """Refuse a URL with too few slashes: a parser would take the start of its path for a host."""
    parts = urlsplit(url)
    scheme, path = parts.scheme, parts.path
    if parts.netloc:
        cure = f"{scheme}:///{parts.netloc}{path}"
    elif has_slashes(url) or not path:
        return
    elif path.startswith("/"):
        cure = f"{scheme}:///{path} for an absolute path, or {scheme}://{path} for a relative one"
    else:
        cure = f"{scheme}:///{path}"
    raise InvalidSetting(f"{name} has too few slashes: write {cure}", field=name)


def check_memory(name: str, url: str) -> None:
    if not has_slashes(url):
        raise InvalidSetting(f"{name} has too few slashes: write memory://", field=name)


def has_slashes(url: str) -> bool:
    return url.partition(":")[2].startswith("//")


def missing_file(url: str) -> Path | None:
    """Return the file of a sqlite:// URL if it does not exist yet, otherwise None."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return None
    file = _sqlite_file(parts, must_exist=False)
    return None if file.is_file() else file


def open_alone(url: str, clock: Clock) -> SqliteAlone:
    """Open a SQLite store exclusively. Raises while another process has the store open."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        raise InvalidSetting(
            "url must be a sqlite:// store: a DynamoDB table cannot be opened exclusively",
            field="url",
        )
    return SqliteAlone.open(_sqlite_file(parts, must_exist=True), clock)


def _refuse_extras(parts: SplitResult) -> None:
    if parts.query or parts.fragment or parts.netloc:
        raise InvalidSetting(
            f"url has a host, ? or #, which this store does not take: use {EXAMPLES}", field="url"
        )


def _memory(parts: SplitResult, clock: Clock, must_exist: bool) -> Stores:
    _refuse_extras(parts)
    if must_exist:
        raise InvalidSetting("memory:// exists only inside its process: name a durable store")
    if parts.path not in ("", "/"):
        raise InvalidSetting("memory:// takes no path: its data is lost when it is closed")
    return memory_stores(clock)


def _sqlite(parts: SplitResult, clock: Clock, must_exist: bool) -> Stores:
    return sqlite_stores(_sqlite_file(parts, must_exist), clock)


def _sqlite_file(parts: SplitResult, must_exist: bool) -> Path:
    _refuse_extras(parts)
    file = Path(parts.path[1:])
    try:
        _check_file(file, must_exist)
    except (OSError, ValueError) as error:
        raise InvalidSetting(
            f"url names no usable file ({error}): use {EXAMPLES}", field="url"
        ) from None
    return file


def _check_file(file: Path, must_exist: bool) -> None:
    if must_exist and not file.is_file():
        raise InvalidSetting(f"there is no database {file}: check the url")
    if file.name in ("", ":memory:") or file.is_dir():
        raise InvalidSetting("url must name a file, as in sqlite:///chat.db", field="url")
    if not file.absolute().parent.is_dir():
        raise InvalidSetting(f"there is no folder {file.parent} for the database: make it first")


def _dynamodb(parts: SplitResult, clock: Clock, must_exist: bool) -> Stores:  # noqa: ARG001
    from heatsink.stores.dynamodb import dynamodb_stores
    from heatsink.stores.dynamodb.address import parse_url

    return dynamodb_stores(parse_url(parts), clock)


OPENERS: dict[str, Opener] = {"memory": _memory, "sqlite": _sqlite, "dynamodb": _dynamodb}
