"""Reads which tables are spread from a file, for programs that are not in Python.

[[table]]
name = "chat"
partition_key = "room"
sort_key = "at"

[[table.rule]]
prefix = "MSG#"
time = "iso_text"

[[table.rule]]
prefix = "TENANT#"
buckets = 8
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from heatsink.door import times
from heatsink.door.declaration import AHEAD_S, Rule, SpreadTable, by_time, fixed, unspread
from heatsink.errors import InvalidSetting
from heatsink.primitives.validation import what_is_wrong
from heatsink.primitives.words import did_you_mean
from heatsink.registry.declarations import BY_TIME, FIXED, DeclaredTable

TIMES = ("iso_text", "millis", "millis_text", "seconds", "ulid_text", "uuid7_text")


class RuleLine(msgspec.Struct, forbid_unknown_fields=True):
    prefix: str = ""
    time: str | None = None
    buckets: int | None = None


class TableLine(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partition_key: str
    sort_key: str
    rule: list[RuleLine]
    sort_type: str = "S"
    append_only: bool = False
    ahead_s: float = AHEAD_S
    unused_indexes: list[str] = []


class File(msgspec.Struct, forbid_unknown_fields=True):
    table: list[TableLine]


def read_tables(path: Path) -> list[SpreadTable]:
    """Return the tables that a TOML file declares.

    Raises `InvalidSetting`, which names the file, the table and the field that is wrong.
    """
    try:
        values: dict[str, Any] = tomllib.loads(path.read_bytes().decode())
    except (OSError, ValueError) as error:  # not UTF-8, or not TOML
        raise InvalidSetting(f"{path} cannot be read: {error}", field="tables") from None
    try:
        lines = msgspec.convert(values, File).table
    except msgspec.ValidationError as error:
        raise InvalidSetting(f"{path}: {what_is_wrong(error, File)[1]}", field="tables") from None
    names = [line.name for line in lines]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSetting(f"{path} declares the table {name!r} twice", field="tables")
    return [_table(path, line) for line in lines]


def _table(path: Path, line: TableLine) -> SpreadTable:
    try:
        return SpreadTable(
            line.name,
            line.partition_key,
            line.sort_key,
            [_rule(rule) for rule in line.rule],
            sort_type=line.sort_type,
            append_only=line.append_only,
            ahead_s=line.ahead_s,
            unused_indexes=frozenset(line.unused_indexes),
        )
    except InvalidSetting as error:
        raise InvalidSetting(f"{path}, table {line.name!r}: {error}", field="tables") from None


def table_of(name: str, record: DeclaredTable) -> SpreadTable:
    """Return the table that the registry has recorded.

    Raises `InvalidSetting` if it uses a function of the application's own.
    """
    rules = []
    for prefix, words in record.rules.items():
        kind, _, detail = words.partition(" ")
        if kind == BY_TIME and detail not in TIMES:
            raise InvalidSetting(
                f"table {name!r} is declared with a function of your own ({detail}), which only "
                "your program has: this step is not possible here",
                field="tables",
            )
        line = RuleLine(prefix, time=detail) if kind == BY_TIME else RuleLine(prefix)
        rules.append(_rule(RuleLine(prefix, buckets=int(detail)) if kind == FIXED else line))
    kind = record.sort_type or "S"
    return SpreadTable(name, record.partition_key, record.sort_key, rules, sort_type=kind)


def _rule(line: RuleLine) -> Rule:
    if line.time is not None and line.buckets is not None:
        raise InvalidSetting(f"the rule for the prefix {line.prefix!r} has both time and buckets")
    if line.time is not None:
        if line.time not in TIMES:
            raise InvalidSetting(
                f"time {line.time!r} of the prefix {line.prefix!r} is unknown: "
                f"{did_you_mean(line.time, TIMES)}"
            )
        return by_time(line.prefix, getattr(times, line.time))
    if line.buckets is not None:
        return fixed(line.prefix, buckets=line.buckets)
    return unspread(line.prefix)
