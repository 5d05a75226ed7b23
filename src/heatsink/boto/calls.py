"""Calls through the application's own boto3 client, retried and counted as heat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from heatsink.client.blocking_calls import BlockingCalls
from heatsink.client.connect import connect
from heatsink.client.loop_thread import LoopThread
from heatsink.client.settings import ConnectOptions
from heatsink.door.drivers import is_thawed
from heatsink.errors import Closed, HeatsinkError, Retryable, Throttled
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.keys import partition_of
from heatsink.primitives.subjects import Subject
from heatsink.registry.adoption import Adoptions, append_only
from heatsink.registry.declarations import Declared, declare
from heatsink.registry.layouts import Layout

Result = TypeVar("Result")
CLOSED = "this table is closed: make another heatsink.boto.Table"
THROTTLES = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
}


class Calls:
    """Sends operations on the table through `table.meta.client`. Raises `Throttled` for throttling.

    This client takes and returns the same values as the application's Table resource. It retries
    calls as the application has configured. Unlike the resource, the client is thread-safe.
    """

    def __init__(self, boto_table: Any, background: Background) -> None:
        self.table = boto_table.name
        self._client = boto_table.meta.client
        self._refusal = boto_table.meta.client.exceptions.ClientError
        self._background = background

    def send(self, operation: str, key: str, bucket: int | None, **parameters: Any) -> Any:
        """Send one operation on one bucket, with retries, and return boto3's response.

        `key` is the key's name in the registry. If `bucket` is None, the operation is on the bare
        key.
        """
        parameters["TableName"] = self.table
        return self._background.call(lambda: self._try(operation, key, bucket, parameters), key)

    def write_batch(self, requests: list[Any], key: str, bucket: int | None) -> None:
        """Send all requests to one bucket, with retries.

        Items that DynamoDB returns as unprocessed count as throttled, and are sent again.
        """
        waiting = requests

        def attempt() -> None:
            nonlocal waiting
            parameters = {"RequestItems": {self.table: waiting}}
            answer = self._try("batch_write_item", key, bucket, parameters)
            waiting = answer.get("UnprocessedItems", {}).get(self.table, [])
            if waiting:
                raise Throttled(partition_of(key, bucket))

        self._background.call(attempt, key)

    def _try(self, operation: str, key: str, bucket: int | None, parameters: Any) -> Any:
        """Make one call, and return boto3's response.

        If boto3 itself has retried the call, DynamoDB has probably throttled it. So such a call
        counts as throttled in the key's heat.
        """
        try:
            answer = getattr(self._client, operation)(**parameters)
            if answer.get("ResponseMetadata", {}).get("RetryAttempts"):
                self._background.note_throttle(key, bucket)
            return answer
        except self._refusal as error:
            if error.response.get("Error", {}).get("Code") in THROTTLES:
                raise Throttled(partition_of(key, bucket)) from error
            raise


class Background:
    """A Heatsink client on a background event loop, for code that blocks as boto3 does.

    This is the only class that knows which parts of a client a table needs.
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
        self._backoff = inner.parts.backoff
        self._is_closing = False

    def check_open(self) -> None:
        self._loop.check()
        if self._is_closing:
            raise Closed(CLOSED)

    def refuse_calls(self) -> None:
        """Refuse new calls with `Closed`; running calls continue until `close`."""
        self._is_closing = True

    def close(self) -> None:
        self._loop.end(self._inner.close)

    def call(self, attempt: Callable[[], Result], key: str) -> Result:
        """Return the result of `attempt`, which is retried if it raises `Retryable`.

        The first try runs in the caller's thread; only retries run in the background.
        """
        self.registry.check()
        try:
            return attempt()
        except Retryable as refusal:
            again = partial(asyncio.to_thread, attempt)
            deadline_s = self._backoff.deadline_s()
            return self._loop.call(self._backoff.after, refusal, again, key, deadline_s)

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

    def thaw(self) -> None:
        """Renew the view if this process stood still, as a frozen function does between calls."""
        if is_thawed(self.registry):
            self.renew()

    def flush(self) -> None:
        """Send the heat that was counted so far. If the bus is down, it is lost."""
        reporter = self._inner.parts.reporter
        if reporter is not None:
            with suppress(HeatsinkError):
                self._loop.call(reporter.flush)

    def confirm_absence(self, key: str) -> None:
        """Make sure after an empty read of `key` that the data store was not wiped.

        Raises if the store was wiped, replaced or set back since this process connected.
        """
        if not self.registry.is_fresh():
            renew, deadline_s = self.registry.renew_shared, self._backoff.deadline_s()
            self._loop.call(self._backoff.call, renew, key, deadline_s)
        self.registry.check()

    def renew(self) -> None:
        deadline_s = self._backoff.deadline_s()
        self._loop.call(self._backoff.call, self.registry.renew, "", deadline_s)

    def layout(self, key: str) -> Layout:
        """Read a key's layout from the registry's store."""
        return self.start_layout(key).result()

    def declare(self, table: str, declared: Declared) -> None:
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

    def start_layout(self, key: str) -> Future[Layout]:
        """Start to read a key's layout from the registry's store, and return the layout's future.

        Meanwhile the caller queries the buckets that it knows.
        """
        layout, deadline_s = partial(self.registry.layout, key), self._backoff.deadline_s()
        return self._loop.start(self._backoff.call, layout, key, deadline_s)
