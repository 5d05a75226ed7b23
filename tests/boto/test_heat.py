"""A key of an existing table gets hot on an engine that throttles, and is spread by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic, time
from typing import Any

import pytest
from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

import heatsink
from heatsink.boto import Table, times

from .conftest import KEYS, Engine, running_engine

WRITERS = 24
MORE = 20  # rows of each writer after the key is spread
PATIENCE_S = 60.0
LIMITS = ("--write-limit", "100", "--burst-seconds", "1", "--partitions", "16")
BOTO_RETRIES = pytest.mark.full("24 busy writers for seconds; with less help it is harder")
NO_RETRIES: dict[str, Any] = {"retries": {"total_max_attempts": 1}}


def over(plain: Any, engine: Engine) -> Table:
    return Table(
        plain,
        partition_key=KEYS[0],
        sort_key=KEYS[1],
        time_of=times.millis_text,
        registry=engine.registry,
        rules=heatsink.BucketRules(bucket_units_s=80),
    )


def is_spread(table: Table) -> bool:
    return table.explain("hot").layout.max_buckets > 1


def write(table: Table, writer: int) -> list[str]:
    """Until the key is spread, and then some more. Returns what was acknowledged."""
    acknowledged: list[str] = []
    give_up_s, enough = monotonic() + PATIENCE_S, None
    while len(acknowledged) != enough and monotonic() < give_up_s:
        if enough is None and is_spread(table):
            enough = len(acknowledged) + MORE
        sent = f"{int(time() * 1000)}#{writer}-{len(acknowledged)}"
        try:
            table.put_item(Item={"conversation": "hot", "sent": sent})
        except ClientError as error:
            if "Throughput" not in str(error) and "Throttling" not in str(error):
                raise
            continue
        acknowledged.append(sent)
    return acknowledged


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "config",
    [pytest.param({}, marks=BOTO_RETRIES), NO_RETRIES],
    ids=["boto3 retries", "boto3 does not"],
)
def test_a_hot_key_is_spread_by_itself_and_nothing_is_lost(config: dict[str, Any]) -> None:
    with running_engine(*LIMITS) as engine:
        plain = engine.make_table("chat", **config)
        plain.put_item(Item={"conversation": "hot", "sent": "1700000000000#old"})
        with over(plain, engine) as table:
            with ThreadPoolExecutor(WRITERS) as pool:
                each = list(pool.map(lambda n: write(table, n), range(WRITERS)))
            acknowledged = {sent for one in each for sent in one}
            assert is_spread(table)
            assert acknowledged | {"1700000000000#old"} <= read_back(table)


def test_a_batch_on_a_throttled_table_waits_and_loses_nothing() -> None:
    with running_engine(*LIMITS) as engine:
        plain = engine.make_table("chat")
        table = over(plain, engine)
        sent = {f"1700000000000#{n}" for n in range(400)}
        with table.batch_writer() as batch:
            for one in sent:
                batch.put_item(Item={"conversation": "hot", "sent": one})
        assert read_back(table) == sent
        table.close()


def read_back(table: Table) -> set[str]:
    found: list[str] = []
    where = Key("conversation").eq("hot")
    start: dict[str, Any] = {}
    while True:
        answer = table.query(KeyConditionExpression=where, ConsistentRead=True, **start)
        found += [item["sent"] for item in answer["Items"]]
        if "LastEvaluatedKey" not in answer:
            assert found == sorted(set(found))
            return set(found)
        start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
