"""Random numbers and secrets.

Jitter and the random part of ids come from a `Random`, which is seeded anew in every process, also
after a fork. Its numbers can be predicted by anyone who has seen enough of them. So secrets come
from the operating system instead.
"""

from __future__ import annotations

import os
from random import Random
from secrets import token_bytes
from weakref import WeakSet

SECRET_BYTES = 32
_sources: WeakSet[Random] = WeakSet()


def fresh_random() -> Random:
    source = Random()
    _sources.add(source)
    return source


def fresh_secret() -> bytes:
    """The secret with which the processes of a new registry sign their news."""
    return token_bytes(SECRET_BYTES)


def _seed_all() -> None:
    """Seed every source again: with its parent's numbers a child would mint its parent's ids."""
    for source in _sources:
        source.seed()


os.register_at_fork(after_in_child=_seed_all)
