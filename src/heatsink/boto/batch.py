"""`with table.batch_writer() as batch`: many puts and deletes in few requests, none lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from .calls import Calls

REQUESTS_MAX = 25
Place = tuple[str, int | None, Any]  # a key as the registry calls it, its bucket, the sort key


class BatchWriter:
    """Of several writes to one item only the last is sent, as a batch may name it only once.

    A batch goes to one bucket, so that a bucket that is over its limit holds up no other.
    """

    def __init__(self, calls: Calls, placed: Callable[[Any, bool], dict[Place, Any]]) -> None:
        self._calls = calls
        self._placed = placed
        self._waiting: dict[tuple[str, int | None], dict[Any, Any]] = defaultdict(dict)

    def put_item(self, Item: dict[str, Any]) -> None:  # noqa: N803 (boto3's name)
        self._add(self._placed(Item, False))

    def delete_item(self, Key: dict[str, Any]) -> None:  # noqa: N803 (boto3's name)
        self._add(self._placed(Key, True))

    def _add(self, requests: dict[Place, Any]) -> None:
        for (key, bucket, sort), request in requests.items():
            bucketful = self._waiting[key, bucket]
            bucketful[sort] = request
            if len(bucketful) >= REQUESTS_MAX:
                self._send(key, bucket)

    def _send(self, key: str, bucket: int | None) -> None:
        """What was refused until the deadline keeps waiting: `flush` may be called again."""
        requests = self._waiting[key, bucket]
        self._calls.write_batch(list(requests.values()), key, bucket)
        del self._waiting[key, bucket]

    def flush(self) -> None:
        for key, bucket in list(self._waiting):
            self._send(key, bucket)

    def __enter__(self) -> BatchWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """What was put before an error is written too, as boto3 does."""
        self.flush()
