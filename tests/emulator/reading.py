"""A consumer of a stream: reads every shard once, parents before children."""

from __future__ import annotations

from typing import Any

from heatsink.emulator.engine import STREAMS_API

from .calls import TABLE, Calls


def arn_of(calls: Calls) -> str:
    arn: str = calls("DescribeTable", TableName=TABLE)["Table"]["LatestStreamArn"]
    return arn


class Consumer:
    """Goes on where it stopped when it is asked again."""

    def __init__(self, calls: Calls, arn: str | None = None, limit: int = 7) -> None:
        self._calls = calls
        self._arn = arn or arn_of(calls)
        self._limit = limit
        self._iterators: dict[str, str | None] = {}

    def shards(self) -> list[Any]:
        found: list[Any] = []
        start: dict[str, str] = {}
        while True:
            page = self._ask("DescribeStream", StreamArn=self._arn, Limit=2, **start)
            described = page["StreamDescription"]
            found += described["Shards"]
            if "LastEvaluatedShardId" not in described:
                return found
            start = {"ExclusiveStartShardId": described["LastEvaluatedShardId"]}

    def read(self) -> list[Any]:
        """The records since the last call, as far as parents are read to their end."""
        shards = self.shards()
        known = {shard["ShardId"] for shard in shards}
        records: list[Any] = []
        for shard in shards:  # DescribeStream lists parents first
            parent = shard.get("ParentShardId")
            if parent not in known or self._iterators.get(parent, "") is None:
                records += self._drain(shard["ShardId"])
        return records

    def _drain(self, shard: str) -> list[Any]:
        records: list[Any] = []
        if shard not in self._iterators:
            self._iterators[shard] = self._ask(
                "GetShardIterator",
                StreamArn=self._arn,
                ShardId=shard,
                ShardIteratorType="TRIM_HORIZON",
            )["ShardIterator"]
        while (iterator := self._iterators[shard]) is not None:
            page = self._ask("GetRecords", ShardIterator=iterator, Limit=self._limit)
            records += page["Records"]
            self._iterators[shard] = page.get("NextShardIterator")
            if not page["Records"]:
                break
        return records

    def _ask(self, operation: str, **request: Any) -> Any:
        answer = self._calls(STREAMS_API + operation, **request)
        assert self._calls.status == 200, answer
        return answer
