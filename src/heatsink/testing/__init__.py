"""Tools for Heatsink's tests and yours: virtual time, faulty links, skewed traffic, handlers."""

from .clocks import ManualClock, SkewedClock, run_on_virtual_time
from .faults import Faults, Link, linked_queue, linked_stores
from .handlers import Ran, context, run
from .traffic import zipf_keys

__all__ = [
    "Faults",
    "Link",
    "ManualClock",
    "Ran",
    "SkewedClock",
    "context",
    "linked_queue",
    "linked_stores",
    "run",
    "run_on_virtual_time",
    "zipf_keys",
]
