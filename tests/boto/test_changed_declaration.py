"""A table's declaration is in the registry: once keys are spread, another one is refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from boto3.dynamodb.conditions import Key
from botocore.exceptions import ClientError

from heatsink.boto import Table, attach
from heatsink.door import times
from heatsink.door.declaration import Rule, SpreadTable, by_time, fixed, unspread
from heatsink.door.keys import TAG
from heatsink.door.times import iso_text, millis_text
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.registry.declarations import DeclaredTable, declare
from heatsink.server.adoption.steps import registry_at
from tests.adoption import complete_adoption
from tests.waiting import until

from .conftest import KEYS, Engine

names = count()
OWN = [by_time("MSG#", iso_text)]
ROW = {KEYS[0]: "r", KEYS[1]: "META"}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def declared(name: str, rules: list[Rule]) -> SpreadTable:
    return SpreadTable(name, partition_key=KEYS[0], sort_key=KEYS[1], rules=rules)


def attached(engine: Engine, name: str, rules: list[Rule]) -> Any:
    return attach(engine.resource(), tables=[declared(name, rules)], registry=engine.registry)


def complete(engine: Engine, name: str) -> None:
    complete_adoption(engine.registry, name)


@pytest.fixture(scope="module")
def spread(engine: Engine) -> str:
    """The name of a table with a spread key. Nothing is attached to it."""
    plain = engine.make_table("declared")
    resource = engine.resource()
    table = resource.Table(plain.name)
    tables = [declared(plain.name, OWN)]
    with attach(resource, tables=tables, registry=engine.registry) as attachment:
        complete(engine, plain.name)
        attachment.pin(plain.name, "r", buckets=4, reason="a test")

        def is_spread() -> bool:
            table.put_item(Item={KEYS[0]: "r", KEYS[1]: f"MSG#{now()}"})
            return any(TAG in row[KEYS[0]] for row in plain.scan()["Items"])

        until(is_spread)
    return str(plain.name)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([unspread("MSG#")], "the prefix 'MSG#' is unspread here, and by_time iso_text in"),
        ([], "the prefix 'MSG#' is unspread here"),
        ([by_time("MESSAGE#", iso_text)], "the prefix 'MESSAGE#' is by_time iso_text here"),
        ([by_time("MSG#", millis_text)], "is by_time millis_text here, and by_time iso_text"),
        ([*OWN, unspread("MSG#2026")], "the prefix 'MSG#2026' is unspread here"),
        ([fixed("MSG#", buckets=8)], "the prefix 'MSG#' is fixed 8 here, and by_time iso_text"),
        ([*OWN, by_time("MSG#2", iso_text)], "the prefix 'MSG#2' is by_time iso_text here, and by"),
        ([*OWN, by_time("LOG#", iso_text)], "the prefix 'LOG#' is by_time iso_text here"),
    ],
)
def test_another_declaration_of_a_spread_table_is_refused(
    engine: Engine, spread: str, rules: list[Rule], said: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        attached(engine, spread, rules)
    assert said in str(refused.value)
    assert "heatsink adopt --leave" in str(refused.value)
    attached(engine, spread, OWN).close()


def test_a_declaration_that_places_all_items_alike_is_accepted(engine: Engine, spread: str) -> None:
    attached(engine, spread, [unspread("DUE#"), *OWN]).close()


def test_of_two_processes_that_declare_at_the_same_moment_the_first_wins(engine: Engine) -> None:
    async def both() -> list[Any]:
        async with registry_at(engine.registry, SystemClock()) as registry:
            others = [DeclaredTable("p", "s", "S", {prefix: "by_time iso_text"}) for prefix in "AB"]
            declaring = [declare(registry, "race", one, SystemClock()) for one in others]
            return await asyncio.gather(*declaring, return_exceptions=True)

    first, second = asyncio.run(both())
    assert first is None
    assert isinstance(second, InvalidSetting)
    assert "at the same moment" in str(second)


def test_the_older_interface_compares_its_declaration_too(engine: Engine, spread: str) -> None:
    boto_table = engine.resource().Table(spread)
    given: dict[str, Any] = {"partition_key": KEYS[0], "sort_key": KEYS[1]}
    given["registry"] = engine.registry
    with pytest.raises(InvalidSetting, match="differs"):
        Table(boto_table, time_of=iso_text, **given)
    Table(boto_table, time_of=times.after("MSG#", iso_text), **given).close()


def test_before_the_adoption_a_declaration_may_be_replaced(engine: Engine) -> None:
    """A running process that has the old one refuses the table once keys may be spread."""
    plain = engine.make_table(f"replaced{next(names)}")
    resource = engine.resource()
    table = resource.Table(plain.name)
    first = [declared(plain.name, [unspread("MSG#")])]
    with attach(resource, tables=first, registry=engine.registry):
        attached(engine, plain.name, OWN).close()
        table.put_item(Item=ROW)
        complete(engine, plain.name)

        def is_refused() -> bool:
            try:
                table.put_item(Item=ROW)
            except ClientError as error:
                return "differs from the one by which its rows were placed" in str(error)
            return False

        until(is_refused)
        with pytest.raises(ClientError, match="differs"):
            table.query(KeyConditionExpression=Key(KEYS[0]).eq("r"))
    with pytest.raises(InvalidSetting, match="differs"):
        attached(engine, plain.name, [unspread("MSG#")])


def test_fixed_buckets_are_refused_for_a_prefix_with_rows(engine: Engine) -> None:
    plain = engine.make_table(f"fixed{next(names)}")
    plain.put_item(Item={KEYS[0]: "r", KEYS[1]: "TENANT#7"})
    with pytest.raises(InvalidSetting, match=r"has rows with the prefix 'TENANT#' already"):
        attached(engine, plain.name, [fixed("TENANT#", buckets=8)])
    attached(engine, plain.name, [fixed("USER#", buckets=8)]).close()
    with pytest.raises(InvalidSetting, match="fixed 4 here, and fixed 8 in the registry"):
        attached(engine, plain.name, [fixed("USER#", buckets=4)])
