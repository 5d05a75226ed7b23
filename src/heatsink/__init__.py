"""Heatsink keeps hot keys and spike loads from melting a partitioned system."""

from heatsink.client import Heatsink, Settings, connect, connect_sync
from heatsink.primitives.hooks import Call, Event, Hook
from heatsink.primitives.ids import Snowflake, Ulid, Uuid7
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
    "connect",
    "connect_sync",
]
__version__ = "0.4.0"
