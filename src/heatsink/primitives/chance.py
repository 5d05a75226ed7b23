"""Where a client's chance comes from.

Numbers that may be guessed, such as jitter and the random part of ids, come from a `Random`: fresh
in every process, also after a fork. Who sees enough of them can tell the next ones and the ones
before. So a secret comes from the operating system, and never from a `Random`.
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
    """What a new registry signs its news with."""
    return token_bytes(SECRET_BYTES)


def _seed_all() -> None:
    """A child that went on with its parent's numbers would mint its parent's ids."""
    for source in _sources:
        source.seed()


os.register_at_fork(after_in_child=_seed_all)
