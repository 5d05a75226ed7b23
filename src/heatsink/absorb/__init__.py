"""Hot reads: coalesced, kept near, forgotten in time. Usable alone: `reads = Reads()`."""

from .blocking import BlockingReads
from .policy import NearRules
from .reads import Reads
from .settings import ReadSettings, ReadStats

__all__ = ["BlockingReads", "NearRules", "ReadSettings", "ReadStats", "Reads"]
