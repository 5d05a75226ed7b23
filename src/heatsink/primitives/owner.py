"""The process and the event loop that a client belongs to; in any other, its calls raise `Closed`.

A client holds connections, threads and tasks of the event loop that opened it. In another loop they
would wait for ever. A forked child has copies of them that no thread serves, and a copy of a store
in memory that no other process sees.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import get_ident
from weakref import WeakSet

from heatsink.errors import Closed

FORKED = (
    "this client was opened before a fork, and its connections and threads stayed in the parent: "
    "connect in the child, for example in gunicorn's post_fork or in the initializer of a "
    "multiprocessing pool"
)
ELSEWHERE = (
    "this client belongs to another event loop or thread: connect in the one that uses it, or use "
    "heatsink.connect_sync(), which threads may share"
)
_owners: WeakSet[Owner] = WeakSet()


class Owner:
    """Belongs to the first event loop that checks it. The hot path compares `loop` directly."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_forked = False
        self.on_fork: list[Callable[[], object]] = []
        """What the child must forget: called there, and must neither block nor fail."""
        self._thread = 0

    def check(self) -> None:
        """Raise `Closed` in another event loop, or in a child of the process that opened it."""
        if asyncio._get_running_loop() is not self.loop:
            self.settle()

    def settle(self) -> None:
        """Take the running event loop if there is none yet; raise `Closed` if it is another one."""
        self.check_process()
        if self.loop is not None:
            raise Closed(ELSEWHERE)
        self.loop = asyncio.get_running_loop()
        self._thread = get_ident()
        _owners.add(self)

    def follow(self, other: Owner) -> None:
        """Belong to the same event loop as `other`."""
        self.loop, self._thread = other.loop, other._thread
        _owners.add(self)

    def closed(self, otherwise: str) -> Closed:
        """The error for a client that is not open, because of a fork or for the given reason."""
        return Closed(FORKED if self.is_forked else otherwise)

    def check_process(self) -> None:
        if self.is_forked:
            raise Closed(FORKED)

    def check_thread(self) -> None:
        """Raise `Closed` in another thread; for plain calls, which need no running event loop."""
        self.check_process()
        if self.loop is not None and get_ident() != self._thread:
            raise Closed(ELSEWHERE)

    def _fork(self) -> None:
        self.loop, self.is_forked = None, True
        for forget in self.on_fork:
            forget()


def _fork_all() -> None:
    for owner in list(_owners):
        owner._fork()


os.register_at_fork(after_in_child=_fork_all)
