"""Heatsink keeps hot keys and spike loads from melting a partitioned system.

Names are imported when they are used. So a part of Heatsink that does without the client, such as
the emulator, starts without importing it.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from heatsink.client import Heatsink, Settings, connect, connect_sync
    from heatsink.primitives.hooks import Call, Event, Hook
    from heatsink.primitives.ids import Snowflake, Ulid, Uuid7
    from heatsink.reads.cached import cached
    from heatsink.spread.backoff import Retries
    from heatsink.spread.policy import BucketRules
    from heatsink.stores.throttled import PartitionLimit

__all__ = [
    "BucketRules",
    "Call",
    "Event",
    "Heatsink",
    "Hook",
    "PartitionLimit",
    "Retries",
    "Settings",
    "Snowflake",
    "Ulid",
    "Uuid7",
    "cached",
    "connect",
    "connect_sync",
]
__version__ = "0.4.0"

_MODULES = {
    "heatsink.client": ("Heatsink", "Settings", "connect", "connect_sync"),
    "heatsink.primitives.hooks": ("Call", "Event", "Hook"),
    "heatsink.primitives.ids": ("Snowflake", "Ulid", "Uuid7"),
    "heatsink.reads.cached": ("cached",),
    "heatsink.spread.backoff": ("Retries",),
    "heatsink.spread.policy": ("BucketRules",),
    "heatsink.stores.throttled": ("PartitionLimit",),
}
_PACKAGES = ("bulk", "client", "errors", "reads", "spread", "stores", "testing", "timelines")

if not typing.TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return importlib.import_module(f"heatsink.{name}")
        for module, names in _MODULES.items():
            if name in names:
                found = globals()[name] = getattr(importlib.import_module(module), name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
