"""A Heatsink client in a thread of its own, for code that blocks as boto3 does."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from heatsink.client.blocking_calls import BlockingCalls
from heatsink.client.connect import connect
from heatsink.client.loop_thread import LoopThread
from heatsink.client.settings import ConnectOptions
from heatsink.door.drivers import Thawing, is_thawed
from heatsink.errors import Closed, HeatsinkError
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Subject
from heatsink.registry.adoption import Adoptions, append_only
from heatsink.registry.declarations import DeclaredTable, declare
from heatsink.registry.layouts import Layout

CLOSED = "this attachment is closed: attach the client again"


class Background:
    """A Heatsink client on a background event loop.

    This is the only class that knows which parts of a client an attachment needs.
    """

    def __init__(self, url: str, options: ConnectOptions) -> None:
        inner = connect(url, **options)
        self._clock = options.get("clock") or SystemClock()
        self._loop = LoopThread(CLOSED, self._clock)
        self._loop.begin(inner.__aenter__)
        self._inner = inner
        self.client = BlockingCalls(self._loop, inner)
        self.registry = inner.parts.registry
        self.view = self.registry.view
        self.tracker = inner.parts.tracker
        self.counts = inner.parts.table_counts
        self._backoff = inner.parts.backoff
        self._thawing = Thawing(self.registry.renew, self._backoff, self._clock)
        self._is_closing = False

    def check_open(self) -> None:
        """Raise `Closed`, or `WrongIncarnation` if the registry was wiped, replaced or set back."""
        self._loop.check()
        if self._is_closing:
            raise Closed(CLOSED)
        self.registry.check()

    def refuse_calls(self) -> None:
        """Refuse new calls with `Closed`; running calls continue until `close`."""
        self._is_closing = True

    def close(self) -> None:
        self._loop.end(self._inner.close)

    def note_throttle(self, key: str, bucket: int | None) -> None:
        """Count a throttled call as heat if the bucket belongs to the key's newest epoch.

        Throttling in an older bucket does not count, because new buckets would not prevent it.
        """
        if self.view.layout(key).epochs[-1].uses(bucket):
            self.tracker.record_throttle(key)

    def reach(self, time_ms: int) -> None:
        """Wait until the view's horizon is past `time_ms`.

        Then items of this time can be placed.
        """
        deadline_s = self._backoff.deadline_s()
        reach = partial(self.registry.reach, time_ms, deadline_s)
        self._loop.call(self._backoff.call, reach, "", deadline_s)

    def make_ready(self) -> None:
        """Check as `check_open` does. Renew the view if this process stood still.

        A frozen function stands still between calls.
        """
        if self._is_closing or self._loop.is_forked or self.registry.refusal:
            self.check_open()
        self.thaw()

    def thaw(self) -> None:
        """Renew the view if this process stood still."""
        if is_thawed(self.registry):
            self._loop.call(self._thawing.renew)

    def flush(self) -> None:
        """Send the heat that was counted so far. If the bus is down, this heat is lost."""
        reporter = self._inner.parts.reporter
        if reporter is not None:
            with suppress(HeatsinkError):
                self._loop.call(reporter.flush)

    def renew(self) -> None:
        deadline_s = self._backoff.deadline_s()
        self._loop.call(self._backoff.call, self.registry.renew, "", deadline_s)

    def layout(self, key: str) -> Layout:
        """Read a key's layout from the registry's store."""
        layout, deadline_s = partial(self.registry.layout, key), self._backoff.deadline_s()
        return self._loop.call(self._backoff.call, layout, key, deadline_s)

    def declare(self, table: str, declared: DeclaredTable) -> None:
        """Record a table's declaration. Raises `InvalidSetting` if the registry has another."""
        recording = partial(declare, self.registry, table, declared, self._clock)
        self._loop.call(self._backoff.call, recording, "", self._backoff.deadline_s())

    def declare_append_only(self, table: str) -> None:
        """Let the leader spread keys of a table that other programs still write to."""
        note = append_only(table)
        if note.key not in self.view.pins:
            publish = partial(self.registry.publish, [note], None)
            self._loop.call(self._backoff.call, publish, "", self._backoff.deadline_s())

    def may_spread(self, subject: Subject) -> bool:
        """Return whether the leader may spread a subject. If the view says no, renew it first."""
        if not Adoptions(self.view).allow(subject):
            self.renew()
        return Adoptions(self.view).allow(subject)

    def now_ms(self) -> int:
        return self.registry.now_ms()

    def sleep(self, seconds: float) -> None:
        self._loop.call(self._clock.sleep, seconds)
