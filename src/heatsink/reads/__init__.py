"""Hot reads: coalesced, cached near the reader, invalidated on writes. Works alone: `Reads()`."""

from .blocking import BlockingReads
from .near_cache import ReadSettings, ReadStats
from .policy import NearRules
from .reads import Reads

__all__ = ["BlockingReads", "NearRules", "ReadSettings", "ReadStats", "Reads"]
