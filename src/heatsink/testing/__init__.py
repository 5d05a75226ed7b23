"""Tools for Heatsink's tests and yours: clocks, virtual time, skewed traffic, faulty links."""

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
