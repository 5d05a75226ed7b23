"""For tests, ours and yours: clocks turned by hand, virtual time, skewed traffic, faults."""

from .clocks import ManualClock, SkewedClock
from .faults import Faults, Link, linked_queue, linked_stores
from .traffic import zipf_keys
from .virtual import run_on_virtual_time

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
