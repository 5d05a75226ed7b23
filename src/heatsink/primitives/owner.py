"""The process and event loop that a client belongs to. Elsewhere, its calls raise `Closed`.

Calls after the client was closed raise `Closed` too, even through parts such as `hs.log` that the
application took from the client before.

A client holds connections, threads and tasks of the event loop that opened it. In another event
loop, calls would wait for ever. A forked child has copies of the connections that no thread serves,
and a copy of a store in memory that no other process sees.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import get_ident
from weakref import WeakSet

from heatsink.errors import Closed

CLOSED = (
    "this client is not open: use it inside `async with heatsink.connect(…)`, "
    "or without asyncio inside `with heatsink.connect_sync(…)`"
)
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
    """The event loop that a client belongs to: the first event loop in which `check` is called.

    For speed, `Log.append` itself asks whether `loop` runs in this thread. It calls `check` only if
    not.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.is_forked = False
        self.is_closed = False
        self.on_fork: list[Callable[[], object]] = []
        """Functions that a forked child calls to drop the client's state.

        The functions must neither block nor fail.
        """
        self.thread = 0  # the thread of the owning event loop

    def check(self) -> None:
        """Raise `Closed` in any event loop but the owning one, or if the client was closed.

        In a forked child process, raise `Closed` too. The first call makes the running event loop
        the owning one.
        """
        # Before Python 3.12 asyncio asks for the process id, a system call, to find the running
        # loop. But if the owning loop runs in this thread, it is the running loop.
        loop = self.loop
        is_here = loop is not None and self.thread == get_ident() and loop.is_running()
        if not is_here and asyncio._get_running_loop() is not loop:
            self.settle()

    def settle(self) -> None:
        """Make the running event loop the owning one. Raises `Closed` if there is one already."""
        self.check_process()
        if self.loop is not None:
            raise Closed(ELSEWHERE)
        self.loop = asyncio.get_running_loop()
        self.thread = get_ident()
        _owners.add(self)

    def follow(self, other: Owner) -> None:
        """Make the event loop of `other` the owning one."""
        self.loop, self.thread = other.loop, other.thread
        _owners.add(self)

    def close(self) -> None:
        """Make all later checks raise `Closed`."""
        self.loop, self.is_closed = None, True

    def closed(self, otherwise: str = CLOSED) -> Closed:
        """Return the error for a client that is not open.

        In a forked child process, the text of the error explains the fork. Elsewhere the text is
        `otherwise`.
        """
        return Closed(FORKED if self.is_forked else otherwise)

    def check_process(self) -> None:
        """Raise `Closed` in a forked child process, and after the client was closed."""
        if self.is_forked or self.is_closed:
            raise self.closed()

    def check_thread(self) -> None:
        """Raise `Closed` in any thread but that of the owning event loop.

        Calls without `await` use this check, since they need no running event loop.
        """
        self.check_process()
        if self.loop is not None and get_ident() != self.thread:
            raise Closed(ELSEWHERE)

    def _fork(self) -> None:
        self.loop, self.is_forked = None, True
        for forget in self.on_fork:
            forget()


def _fork_all() -> None:
    for owner in list(_owners):
        owner._fork()


os.register_at_fork(after_in_child=_fork_all)
