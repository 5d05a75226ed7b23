"""The time in a sort key, as `time_of` for `heatsink.boto.Table`: see `heatsink.door.times`."""

from heatsink.door.times import (
    TimeOf,
    after,
    careful,
    iso_text,
    millis,
    millis_text,
    seconds,
    ulid_text,
    uuid7_text,
)

__all__ = [
    "TimeOf",
    "after",
    "careful",
    "iso_text",
    "millis",
    "millis_text",
    "seconds",
    "ulid_text",
    "uuid7_text",
]
