"""What logs and counters of one process share."""

from __future__ import annotations

from dataclasses import dataclass

from heatsink.clock import Clock
from heatsink.detect.tracker import Tracker
from heatsink.registry.registry import Registry

from .backoff import Backoff
from .router import Router


@dataclass(frozen=True, slots=True)
class Parts:
    registry: Registry
    router: Router
    tracker: Tracker
    backoff: Backoff
    clock: Clock
