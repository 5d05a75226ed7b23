"""Hooks that observe the parts of a client, such as tracing; each part is passed in once."""

from __future__ import annotations

from typing import Protocol

from heatsink.bulk.actions import Actions
from heatsink.bulk.bulk import Bulk
from heatsink.reads.blocking import BlockingReads
from heatsink.reads.reads import Reads
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log


class Instruments(Protocol):
    """Each call may change its part in place; `actions` returns the actions that run."""

    def log(self, log: Log) -> None: ...

    def counters(self, counters: Counters) -> None: ...

    def reads(self, reads: Reads | BlockingReads) -> None: ...

    def bulk(self, bulk: Bulk) -> None: ...

    def actions(self, actions: Actions, bulk: Bulk) -> Actions: ...


class NoInstruments:
    """Leaves every part as it is."""

    def log(self, log: Log) -> None: ...

    def counters(self, counters: Counters) -> None: ...

    def reads(self, reads: Reads | BlockingReads) -> None: ...

    def bulk(self, bulk: Bulk) -> None: ...

    def actions(self, actions: Actions, bulk: Bulk) -> Actions:  # noqa: ARG002
        return actions


NONE = NoInstruments()
