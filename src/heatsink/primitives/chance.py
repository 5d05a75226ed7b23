"""Random numbers and secrets.

Jitter and the random part of ids come from a `Random`. Every process seeds it anew, even after a
fork. Anyone who has seen enough numbers of a `Random` can predict the next ones. So secrets come
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
    """Return a new secret, with which the leaders of a new registry sign their news."""
    return token_bytes(SECRET_BYTES)


def _seed_all() -> None:
    """Seed every random source again.

    Without this, a forked child would mint the same ids as its parent.
    """
    for source in _sources:
        source.seed()


os.register_at_fork(after_in_child=_seed_all)
