"""For tests, ours and yours: clocks turned by hand, virtual time, skewed traffic, faults."""

from .clocks import ManualClock, SkewedClock, run_on_virtual_time
from .faults import Faults, Link, linked_queue, linked_stores
from .traffic import zipf_keys

__all__ = [
    "Faults",
    "Link",
    "ManualClock",
    "SkewedClock",
    "linked_queue",
    "linked_stores",
    "run_on_virtual_time",
    "zipf_keys",
]
