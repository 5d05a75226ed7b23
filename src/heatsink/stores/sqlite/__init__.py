"""The data store in one SQLite file, which processes on one machine can share.

An acknowledged write is on disk.
"""

from __future__ import annotations

from pathlib import Path

from heatsink.primitives.clock import Clock
from heatsink.stores.stores import Stores

from .counters import SqliteCounters
from .engine import ANSWER_S, SqliteDatabase
from .log import SqliteLog, run_batch
from .registry import SqliteBus, SqliteRegistry


def sqlite_stores(file: Path, clock: Clock) -> Stores:
    return stores_over(SqliteDatabase(file, run_batch), clock)


def stores_over(database: SqliteDatabase, clock: Clock) -> Stores:
    registry = SqliteRegistry(database, clock)
    return Stores(
        log=SqliteLog(database, clock),
        answers_in_s=ANSWER_S,
        counters=SqliteCounters(database),
        registry=registry,
        lease=registry,
        bus=SqliteBus(database),
        close=database.close,
    )
