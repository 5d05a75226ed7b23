"""The IAM policies of docs/how-to/aws.md against what the code calls: enough, and not more."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from heatsink import connect
from heatsink.door.keys import registry_key
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.registry.adoption import append_only
from heatsink.registry.declarations import BY_TIME, DeclaredTable, declare, recorded
from heatsink.server.commands.fsck import run_fsck
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.client import DynamoClient, Item, Result
from heatsink.stores.dynamodb.table import KEYS, LOG, PINS
from heatsink.stores.dynamodb.verify.service import ROLES
from tests.spread.test_log import everything, spread

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "aws.md"
CLOCK = SystemClock()
NO_LEADING_KEYS = {"DescribeTable", "Scan"}


class Use(NamedTuple):
    """An action as IAM sees it, and the partition keys it is about."""

    action: str
    keys: frozenset[str]


def policy(role: str) -> list[dict[str, Any]]:
    section = re.search(rf"### {role}\n.*?```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert section, f"docs/how-to/aws.md has no policy for {role}"
    statements: list[dict[str, Any]] = json.loads(section[1])["Statement"]
    return statements


def applies(statement: dict[str, Any], use: Use) -> bool:
    if f"dynamodb:{use.action}" not in statement["Action"]:
        return False
    for operator, condition in statement.get("Condition", {}).items():
        named = condition["dynamodb:LeadingKeys"]
        hits = [any(fnmatchcase(key, pattern) for pattern in named) for key in use.keys]
        if operator == "ForAllValues:StringLike":
            assert use.keys, "an absent key would pass: name actions that have it"
            return all(hits)
        assert operator == "ForAnyValue:StringLike"
        return any(hits)
    return True


def allows(role: str, use: Use) -> bool:
    hits = [statement["Effect"] for statement in policy(role) if applies(statement, use)]
    return "Allow" in hits and "Deny" not in hits


def uses_of(operation: str, payload: Item) -> Iterator[Use]:
    """Parts of a transaction are judged one by one, as if each were a call of its own."""
    if "TransactItems" in payload:
        for part in payload["TransactItems"]:
            ((kind, request),) = part.items()
            yield from uses_of(f"{kind}Item", request)
    elif operation == "BatchWriteItem":
        (requests,) = payload["RequestItems"].values()
        keys = frozenset(each["DeleteRequest"]["Key"]["p"]["S"] for each in requests)
        yield Use(operation, keys)
    elif operation in NO_LEADING_KEYS:
        yield Use(operation, frozenset())
    else:
        place = payload.get("Key") or payload.get("Item")
        value = place["p"] if place else payload["ExpressionAttributeValues"][":p"]
        yield Use(operation, frozenset([value["S"]]))


@contextmanager
def acting_as(role: str, used: set[Use]) -> Iterator[None]:
    """What it may not do is refused, in the background too, where nobody would hear of it."""
    call, refused = DynamoClient.call, list[str]()

    async def judged(client: DynamoClient, operation: str, payload: Item, *turns: Any) -> Result:
        for use in uses_of(operation, payload):
            if not allows(role, use):
                refused.append(f"{use.action} {sorted(use.keys)}")
                raise InvalidSetting(f"{role} may not {refused[-1]}")
            used.add(use)
        return await call(client, operation, payload, *turns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DynamoClient, "call", judged)
        yield
    assert not refused


def expect_nothing_spare(role: str, used: set[Use]) -> None:
    done = {f"dynamodb:{use.action}" for use in used}
    allowed = [s["Action"] for s in policy(role) if s["Effect"] == "Allow"]
    assert {action for actions in allowed for action in actions} == done


def test_the_policy_of_door_and_attach_has_what_verify_checks() -> None:
    [statement] = policy("Door and attach")
    operations = {one for one in ROLES["door and attach"] if not one.startswith("Transact")}
    wanted = operations | {"ConditionCheckItem"}  # a part of a transaction, as IAM sees it
    assert set(statement["Action"]) == {f"dynamodb:{operation}" for operation in wanted}


@pytest.fixture
async def url() -> AsyncIterator[str]:
    limits = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
    async with running_engine(limits, CLOCK) as endpoint:
        await make_table(parse("messages", {"endpoint": endpoint}), CLOCK)
        yield f"dynamodb://messages?endpoint={endpoint}"


async def test_a_coordinator_leads_and_spreads(url: str) -> None:
    used: set[Use] = set()
    async with connect(url, coordinate=False) as operator:
        await operator.pin("conv", buckets=3, reason="test")
    with acting_as("Coordinator", used):
        async with connect(url) as hs:
            while (await hs.explain("conv")).buckets != 3:
                await CLOCK.sleep(0.02)
            await hs.parts.stores.registry.trim(below=2)
    expect_nothing_spare("Coordinator", used)


async def test_a_door_records_its_tables_with_the_coordinator_s_policy(url: str) -> None:
    async with connect(url):
        pass  # creates the registry
    declared = DeclaredTable("room", "at", "S", {"MSG#": f"{BY_TIME} iso_text"})
    with acting_as("Coordinator", set()):
        async with connect(url, coordinate=False) as hs:
            registry = hs.parts.registry
            await declare(registry, "chat", declared, CLOCK)
            await registry.publish([append_only("chat")], None)
            await registry.layout(registry_key("chat", "lobby"))
            await registry.renew()
            assert recorded(registry.view, "chat") == declared


async def test_a_coordinator_reads_no_rows() -> None:
    assert not allows("Coordinator", Use("Query", frozenset(["conv"])))
    assert not allows("Coordinator", Use("Scan", frozenset()))


async def test_an_app_server_does_its_work(url: str) -> None:
    async with connect(url) as coordinator:
        await spread(coordinator, "conv", 3)
    used: set[Use] = set()
    with acting_as("App server", used):
        async with connect(url, coordinate=False) as hs:
            receipt = await hs.log.append("conv", b"hello")
            await hs.log.append("conv", b"hello", id=receipt.id)
            assert len(await everything(hs, "conv")) == 1
            await hs.log.get("conv", receipt.id)
            await hs.log.delete("conv", receipt.id)
            await hs.counters.add("conv", 2)
            async with hs.counters.buffered() as counts:
                await counts.add("conv")
            assert await hs.counters.value("conv") == 3
            await hs.counters.fold("conv")
    expect_nothing_spare("App server", used)


@pytest.mark.parametrize("action", ["PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem"])
@pytest.mark.parametrize("partition", [LOG[0], LOG[-1], KEYS[0], KEYS[-1], PINS])
def test_an_app_server_decides_nothing(action: str, partition: str) -> None:
    assert not allows("App server", Use(action, frozenset([partition])))


@pytest.mark.parametrize("action", ["PutItem", "DeleteItem", "BatchWriteItem"])
def test_an_app_server_replaces_no_registry(action: str) -> None:
    """It advances the closed time, and founds nothing."""
    assert not allows("App server", Use(action, frozenset(["%meta"])))
    assert allows("App server", Use("UpdateItem", frozenset(["%meta"])))


async def test_an_app_server_that_comes_first_founds_nothing(url: str) -> None:
    with (
        pytest.raises(AssertionError, match="PutItem"),
        acting_as("App server", set()),
        pytest.raises(InvalidSetting, match="may not PutItem"),
    ):
        await connect(url, coordinate=False).__aenter__()


async def test_an_operator_pins_checks_and_rebuilds(url: str) -> None:
    used: set[Use] = set()
    with acting_as("Operator", used):
        async with connect(url, coordinate=False) as hs:
            await hs.pin("conv", buckets=3, reason="test")
            await hs.unpin("conv")
        assert (await run_fsck(url, True, CLOCK)).findings.clean
    expect_nothing_spare("Operator", used)


async def test_a_check_needs_only_to_read(url: str) -> None:
    async with connect(url) as hs:
        await hs.log.append("conv", b"hello")
        await hs.counters.add("views")
    used: set[Use] = set()
    with acting_as("Operator", used):
        await run_fsck(url, False, CLOCK)
    assert {use.action for use in used} == {"GetItem", "Query", "Scan"}
