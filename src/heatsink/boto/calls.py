"""Calls of a user's own boto3 client, with what was throttled as an error of ours.

`table.meta.client` is the client of their Table resource: it takes and gives the same values and
retries as they configured it, and unlike the resource it may be used from many threads.

A Heatsink client on its own loop, for code that blocks as boto3 does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from heatsink.client.blocking import BlockingHeatsink
from heatsink.errors import Closed, Retryable, Throttled
from heatsink.primitives.keys import partition_of
from heatsink.registry.layouts import Layout

Result = TypeVar("Result")


class Background:
    """The one place that knows which parts of a client a table needs."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.client = BlockingHeatsink(url, **options)
        self.client.__enter__()
        inner = self.client._client
        self.registry = inner._registry
        self.view = inner._registry.view
        self.tracker = inner._tracker
        self._backoff = inner._backoff
        self.is_closed = False

    def check_open(self) -> None:
        self.client._client._owner.check_process()
        if self.is_closed:
            raise Closed("this table is closed: make another heatsink.boto.Table")

    def close(self) -> None:
        self.client.close()

    def call(self, attempt: Callable[[], Result], key: str) -> Result:
        """In the caller's own thread; only what was refused goes on in the background."""
        self.registry.check()
        try:
            return attempt()
        except Retryable as refusal:
            again = partial(asyncio.to_thread, attempt)
            deadline_s = self._backoff.deadline_s()
            result: Result = self.client._wait(self._backoff.after, refusal, again, key, deadline_s)
            return result

    def note_throttle(self, key: str, bucket: int | None) -> None:
        """Counted as `Backoff` counts it: not where more buckets would be no relief."""
        if self.view.layout(key).epochs[-1].uses(bucket):
            self.tracker.record_throttle(key)

    def reach(self, time_ms: int) -> None:
        """Return when items of this time may be placed."""
        deadline_s = self._backoff.deadline_s()
        reach = partial(self.registry.reach, time_ms, deadline_s)
        self.client._wait(self._backoff.call, reach, "", deadline_s)

    def believe_nothing(self, key: str) -> None:
        """Nothing was found: by a registry that was wiped, for all we know. See `Parts`."""
        if not self.registry.is_fresh():
            renew, deadline_s = self.registry.renew_shared, self._backoff.deadline_s()
            self.client._wait(self._backoff.call, renew, key, deadline_s)
        self.registry.check()

    def renew(self) -> None:
        deadline_s = self._backoff.deadline_s()
        self.client._wait(self._backoff.call, self.registry.renew, "", deadline_s)

    def start_layout(self, key: str) -> Future[Layout]:
        """Ask the registry's store for a layout; the answer comes while buckets are queried."""
        layout, deadline_s = partial(self.registry.layout, key), self._backoff.deadline_s()
        return self.client._submit(self._backoff.call(layout, key, deadline_s))


THROTTLES = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
}


class Calls:
    def __init__(self, boto_table: Any, background: Background) -> None:
        self.table = boto_table.name
        self._client = boto_table.meta.client
        self._refusal = boto_table.meta.client.exceptions.ClientError
        self._background = background

    def send(self, operation: str, key: str, bucket: int | None, **parameters: Any) -> Any:
        """One operation on one partition of a key (as the registry calls it), with retries."""
        parameters["TableName"] = self.table
        return self._background.call(lambda: self._try(operation, key, bucket, parameters), key)

    def write_batch(self, requests: list[Any], key: str, bucket: int | None) -> None:
        """All of them, however often it takes. A partial refusal is a throttle too."""
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
        """A call that boto3 itself had to repeat was throttled, as a rule: that is heat too."""
        try:
            answer = getattr(self._client, operation)(**parameters)
            if answer.get("ResponseMetadata", {}).get("RetryAttempts"):
                self._background.note_throttle(key, bucket)
            return answer
        except self._refusal as error:
            if error.response.get("Error", {}).get("Code") in THROTTLES:
                raise Throttled(partition_of(key, bucket)) from error
            raise
