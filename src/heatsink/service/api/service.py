"""What the calls of the API have at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from heatsink.bulk.work.consumer import Consumer
from heatsink.client.heatsink import Heatsink
from heatsink.clock import Clock

from .feed import Feed
from .limits import Limits
from .metrics import Metrics


@dataclass(frozen=True)
class CacheRules:
    """How long browsers and CDNs may answer hot reads themselves, in seconds."""

    fresh_for: int = 1
    stale_for: int = 5


@dataclass(frozen=True)
class Service:
    hs: Heatsink
    clock: Clock
    limits: Limits
    cache: CacheRules
    feed: Feed
    metrics: Metrics
    recent: Callable[[], msgspec.Struct]
    consumer: Consumer | None = None
