"""The random source of a client that was given none: fresh in every process, also after a fork."""

from __future__ import annotations

import os
from random import Random
from weakref import WeakSet

_sources: WeakSet[Random] = WeakSet()


def fresh_random() -> Random:
    source = Random()
    _sources.add(source)
    return source


def _seed_all() -> None:
    """A child that went on with its parent's numbers would mint its parent's ids."""
    for source in _sources:
        source.seed()


os.register_at_fork(after_in_child=_seed_all)
