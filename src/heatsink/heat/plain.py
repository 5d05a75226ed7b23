"""Heat reports from programs without this library, as plain fields or JSON.

Such a program counts its own writes and sends the keys that are hot, for example once a second:
`XADD {heatsink}:hot_partitions * conversation_id conv_abc123 wps 950 server api-7`. Such a program
knows no windows and no error bounds. So its report is *partial*: it raises the heat of the keys
that it lists, and says nothing about other keys. Senders are not authenticated, so each sender can
raise the heat of a key by `UNITS_S_MAX` at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite
from typing import Any

import msgspec

from heatsink.errors import InvalidInput

from .heat import Heat, Report

UNITS_S_MAX = 10_000
KEYS_MAX = 256
KEY_MAX = 1_024
SERVER_MAX = 100
NAMES = {"conversation_id": "key", "wps": "writes_s", "ts": "time"}
FIELDS = ("key", "writes_s", "reads_s", "throttles_s", "server", "time", "json")
MILLISECONDS = 1e11  # a larger time is in milliseconds since 1970


def read_fields(fields: Mapping[str, str]) -> Report:
    """Parse the fields of a stream's entry into a report.

    A report of one key has the fields `key`, `writes_s` and so on. A report of several keys has the
    field `json`, an array of objects with these fields. Raises `InvalidInput`, which names the
    wrong field.
    """
    named = {NAMES.get(name, name): value for name, value in fields.items()}
    for name in named:
        if name not in FIELDS:
            raise InvalidInput(f"{name} is unknown: use {', '.join(FIELDS)}", field=name)
    if "json" not in named:
        return plain_report([named], named.get("server", ""), named.get("time"))
    try:
        lines = msgspec.json.decode(named["json"])
    except msgspec.DecodeError:
        raise InvalidInput("json must be a JSON array of objects", field="json") from None
    lines = lines if isinstance(lines, list) else [lines]
    return plain_report(lines, named.get("server", ""), named.get("time"))


def plain_report(lines: list[Any], server: str = "", time: Any = None) -> Report:
    """Make a partial report. Each of `lines` is a mapping with `key`, `writes_s` and so on.

    `time` is in seconds or milliseconds since 1970.
    """
    if not 0 < len(lines) <= KEYS_MAX:
        raise InvalidInput(f"a report lists 1 to {KEYS_MAX} keys, not {len(lines)}", field="key")
    if len(server) > SERVER_MAX:
        raise InvalidInput(f"server must have at most {SERVER_MAX} characters", field="server")
    seconds = 0.0 if time in (None, "") else _number("time", time, 1e15)
    if seconds > MILLISECONDS:
        seconds /= 1000
    keys = dict(map(_key, lines))
    return Report(f"plain:{server}", int(seconds), 1.0, False, 1, keys, partial=True)


def _key(line: Any) -> tuple[str, Heat]:
    if not isinstance(line, Mapping):
        raise InvalidInput("each key must be an object with key and writes_s", field="key")
    named = {NAMES.get(name, name): value for name, value in line.items()}
    key = named.get("key")
    if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX or "\0" in key:
        raise InvalidInput(
            f"key must be text of 1 to {KEY_MAX} characters without NUL", field="key"
        )
    if "writes_s" not in named:
        raise InvalidInput("writes_s (or wps) is missing: writes per second", field="writes_s")
    writes, reads, throttles = (
        ceil(min(_number(name, named.get(name, 0), 1e12), UNITS_S_MAX))
        for name in ("writes_s", "reads_s", "throttles_s")
    )
    return key, Heat(writes=writes, write_units=writes, reads=reads, throttles=throttles)


def _number(name: str, value: Any, high: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not isfinite(number) or not 0 <= number <= high:
        raise InvalidInput(f"{name} must be a number from 0 on, not {value!r:.40}", field=name)
    return number
