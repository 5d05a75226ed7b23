"""Calls of a user's own boto3 client, with what was throttled as an error of ours.

`table.meta.client` is the client of their Table resource: it takes and gives the same values and
retries as they configured it, and unlike the resource it may be used from many threads.
"""

from __future__ import annotations

from typing import Any

from heatsink.errors import Throttled
from heatsink.keys import partition_of

from .background import Background

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
