"""What goes wrong with a DynamoDB table is told in one line that names the cure.

Whatever the other side says, the error is one of ours, after one request, and nothing stays open.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from heatsink import Retries, connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import (
    Closed,
    HeatsinkError,
    InvalidSetting,
    Overloaded,
    Throttled,
    Unavailable,
)
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.cut import Cut
from heatsink.spread.store import Row
from heatsink.stores.dynamodb import dynamodb_stores, make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials, TableThrottled, Turns
from heatsink.stores.dynamodb.table import ATTRIBUTES, KEY_SCHEMA, DynamoTable
from heatsink.stores.dynamodb.wire.signing import Credentials
from heatsink.stores.embedded import free_port
from heatsink.stores.stores import Stores
from heatsink.testing import ManualClock
from tests.http_server import Reply, serving

SERVICE = "com.amazonaws.dynamodb.v20120810#"
ENOUGH = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
PARTITION_LIMIT = EngineSettings(port=0, write_limit=3, burst_s=1)
GARBAGE = {
    "nothing": b"",
    "a page": b"<html><body>Log in to the hotel's network</body></html>",
    "half an object": b'{"Item": {',
    "not an object": b"[1, 2, 3]",
    "not text": b'{"Item": "\xff\xfe"}',
    "another service": b'{"status": "ok"}',
    "nulls": b'{"__type": null, "message": null}',
}


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """What was not closed warns when it is collected, and warnings are errors here."""
    gc.freeze()  # the collector looks only at what the test leaves behind
    yield
    gc.collect()
    gc.unfreeze()


class Answering:
    """Says the same to everyone, and counts."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._status = status
        self._body = body
        self._headers = headers
        self.url = ""
        self.asked = 0

    async def handle(self, _: Mapping[str, str], __: bytes) -> Reply:
        self.asked += 1
        return Reply(self._status, self._body, self._headers)


@asynccontextmanager
async def answering(
    status: int, body: bytes | dict[str, Any], headers: dict[str, str] | None = None
) -> AsyncIterator[Answering]:
    said = body if isinstance(body, bytes) else json.dumps(body).encode()
    answers = Answering(status, said, headers or {})
    async with serving(answers.handle) as answers.url:
        yield answers


@asynccontextmanager
async def a_client(endpoint: str, timeout_s: float = 5.0) -> AsyncIterator[DynamoClient]:
    client = DynamoClient(endpoint, "eu-west-1", FixedCredentials(), SystemClock(), timeout_s)
    try:
        yield client
    finally:
        await client.close()


async def connecting(url: str) -> str:
    """The one line that an application gets when it connects."""
    with pytest.raises(HeatsinkError) as caught:
        async with connect(url):
            pytest.fail("it connected")
    return one_line(caught.value)


async def calling(endpoint: str, timeout_s: float = 5.0) -> HeatsinkError:
    async with a_client(endpoint, timeout_s) as client:
        with pytest.raises(HeatsinkError) as caught:
            await client.call("GetItem", {"TableName": "messages", "Key": {"p": {"S": "k"}}})
    one_line(caught.value)
    return caught.value


def one_line(error: HeatsinkError) -> str:
    assert "\n" not in str(error)
    return str(error)


def error_body(name: str, message: str) -> dict[str, Any]:
    return {"__type": SERVICE + name, "message": message}


async def test_a_missing_table_is_named_with_the_command_that_makes_it() -> None:
    async with running_engine(ENOUGH, SystemClock()) as endpoint:
        said = await connecting(f"dynamodb://absent?endpoint={endpoint}")
    assert "no DynamoDB table 'absent'" in said
    assert "heatsink table create" in said


@pytest.mark.parametrize("keys", [["s", "p"], ["p"], ["p", "t"]], ids="-".join)
async def test_a_table_with_other_keys_is_refused(keys: list[str]) -> None:
    async with running_engine(ENOUGH, SystemClock()) as endpoint:
        async with a_client(endpoint) as client:
            await create(client, dict(zip(keys, "BB", strict=False)))
        said = await connecting(f"dynamodb://messages?endpoint={endpoint}")
    assert "has other keys than Heatsink's (p: string, s: binary)" in said
    assert "heatsink table create" in said


async def test_a_table_whose_keys_have_other_types_is_refused() -> None:
    async with running_engine(ENOUGH, SystemClock()) as endpoint:
        async with a_client(endpoint) as client:
            await create(client, {"p": "N", "s": "B"})
        assert "other keys" in await connecting(f"dynamodb://messages?endpoint={endpoint}")


async def create(client: DynamoClient, types: dict[str, str]) -> None:
    kinds = zip(types, ("HASH", "RANGE"), strict=False)
    request = {
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in kinds],
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in types.items()
        ],
    }
    await DynamoTable(client, "messages").call("CreateTable", request)


@pytest.mark.parametrize("consistency", ["EVENTUAL", "STRONG", None])
async def test_a_table_that_replicates_is_refused(consistency: str | None) -> None:
    async with answering(200, described(MultiRegionConsistency=consistency)) as server:
        said = await connecting(f"dynamodb://messages?endpoint={server.url}")
    assert "replicates to other regions" in said
    assert "use a table in one region" in said


def described(**more: Any) -> dict[str, Any]:
    table = {"KeySchema": KEY_SCHEMA, "AttributeDefinitions": ATTRIBUTES, **more}
    return {"Table": {**table, "Replicas": [{"RegionName": "us-west-2"}]}}


async def test_nobody_at_the_endpoint_points_at_the_url() -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    said = await connecting(f"dynamodb://messages?endpoint={endpoint}")
    assert f"cannot connect to DynamoDB at {endpoint}" in said
    assert "check region= and endpoint= in the url" in said


async def test_a_region_that_does_not_exist_points_at_the_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = await connecting("dynamodb://messages?region=eu-wset-1")
    assert "dynamodb.eu-wset-1.amazonaws.com" in said
    assert "check region= and endpoint= in the url" in said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("UnrecognizedClientException", "The security token included in the request is invalid."),
        ("InvalidSignatureException", "The request signature we calculated does not match"),
        ("ExpiredTokenException", "The security token included in the request is expired"),
        ("AccessDeniedException", "User: arn:aws:iam::1:user/app is not authorized"),
    ],
)
async def test_refused_credentials_say_what_to_check(name: str, message: str) -> None:
    async with answering(400, error_body(name, message)) as server:
        said = await connecting(f"dynamodb://messages?endpoint={server.url}")
        assert server.asked == 1
    assert f"refused the credentials ({name}: {message})" in said
    assert "check the AWS_… variables, profile= in the url, the role" in said


async def test_a_throttled_partition_is_told_by_its_name() -> None:
    async with limited(PARTITION_LIMIT) as stores:
        refusal = await put_until_refused(stores)
    assert not isinstance(refusal, TableThrottled)
    assert (refusal.partition, refusal.is_cured_by_buckets) == ("conv#3", True)


async def test_a_throttled_table_is_not_a_partition_that_is_throttled() -> None:
    async with limited(EngineSettings(port=0, burst_s=1), write_units=3) as stores:
        refusal = await put_until_refused(stores)
    assert isinstance(refusal, TableThrottled)
    assert not refusal.is_cured_by_buckets
    assert "raise the table's or account's limit" in str(refusal)


@pytest.mark.parametrize("field", ["ThrottlingReasons", "throttlingReasons"])
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("TableWriteKeyRangeThroughputExceeded", Throttled),
        ("TableReadKeyRangeThroughputExceeded", Throttled),
        ("TableWriteMaxOnDemandThroughputExceeded", TableThrottled),
        ("TableWriteProvisionedThroughputExceeded", TableThrottled),
        ("TableReadAccountLimitExceeded", TableThrottled),
    ],
)
async def test_the_reason_tells_whose_limit_it_is(
    reason: str, kind: type[Throttled], field: str
) -> None:
    body = error_body("ThrottlingException", "Throughput exceeds the current capacity")
    async with answering(400, {**body, field: [{"reason": reason, "resource": "arn"}]}) as server:
        assert type(await calling(server.url)) is kind


async def test_an_item_in_a_transaction_may_be_tried_again() -> None:
    body = error_body("TransactionConflictException", "Transaction is ongoing for the item")
    async with answering(400, body) as server:
        assert isinstance(await calling(server.url), Throttled)


@asynccontextmanager
async def limited(
    settings: EngineSettings, write_units: int | None = None
) -> AsyncIterator[Stores]:
    """On a clock that stands still: nothing is refilled."""
    clock = ManualClock()
    async with running_engine(settings, clock) as endpoint:
        address = parse("messages", {"endpoint": endpoint})
        await make_table(address, clock, write_units)
        stores = dynamodb_stores(address, clock)
        try:
            yield stores
        finally:
            await stores.close()


async def put_until_refused(stores: Stores) -> Throttled:
    for n in range(10):
        try:
            await stores.log.put("conv#3", Row(n.to_bytes(16, "big"), b"", 0, 4))
        except Throttled as refusal:
            one_line(refusal)
            return refusal
    pytest.fail("nothing was refused")


async def test_an_answer_that_does_not_come_is_given_up() -> None:
    """The engine's clock stands still, so its latency never passes."""
    slow = EngineSettings(port=0, latency_s=1.0)
    async with running_engine(slow, ManualClock()) as endpoint:
        refusal = await calling(endpoint, timeout_s=0.05)
    assert isinstance(refusal, Unavailable)
    assert "did not answer within 0.05 s: check the network and how many calls" in str(refusal)


async def test_a_failing_dynamodb_is_unavailable_and_asked_once() -> None:
    async with answering(500, error_body("InternalServerError", "")) as server:
        refusal = await calling(server.url)
        assert server.asked == 1
    assert isinstance(refusal, Unavailable)
    assert "DynamoDB failed (InternalServerError" in str(refusal)


@pytest.mark.parametrize("status", [200, 302, 400, 404, 500, 503])
@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_is_not_taken_for_an_answer(what: str, status: int) -> None:
    async with answering(status, GARBAGE[what], {"Location": "/login"}) as server:
        said = await connecting(f"dynamodb://messages?endpoint={server.url}")
        assert server.asked == 1
    assert "check endpoint= in the url" in said or "name another table" in said


@pytest.mark.parametrize(
    "answer",
    [{}, {"ok": False}, {"__type": SERVICE + "ProvisionedThroughputExceededException"}, {"a": 1}],
)
async def test_a_put_is_acknowledged_only_by_what_it_asked_for(answer: dict[str, Any]) -> None:
    async with answering(200, answer) as server:
        stores = dynamodb_stores(parse("messages", {"endpoint": server.url}), SystemClock())
        with pytest.raises(Unavailable, match="is not DynamoDB: check endpoint="):
            await stores.log.put("conv", Row(bytes(16), b"", 0, 1))
        await stores.close()


async def test_the_engine_tells_its_time() -> None:
    """So that a process whose clock is wrong goes by the store's, as it does on DynamoDB."""
    clock = ManualClock(1_700_000_000.9)
    async with running_engine(ENOUGH, clock) as endpoint, a_client(endpoint) as client:
        assert (await client.call("ListTables", {})).store_ms == 1_700_000_000_000
        await clock.advance(61.2)
        assert (await client.call("ListTables", {})).store_ms == 1_700_000_062_000


async def test_a_date_that_is_none_does_no_harm() -> None:
    async with (
        answering(200, {}, {"Date": "someday"}) as server,
        a_client(server.url) as client,
    ):
        answer = await client.call("GetItem", {})
    assert abs(answer.store_ms / 1000 - SystemClock().now_s()) < 3_600


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        (b"", ": retry"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", " is not DynamoDB: check endpoint= in the url"),
        (b"HTTP/1.1 200 OK\r\n", ": retry"),
    ],
)
async def test_a_server_that_does_not_speak_http_is_unavailable(said: bytes, cure: str) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        refusal = await calling(f"http://127.0.0.1:{port}")
    assert isinstance(refusal, Unavailable)
    assert str(refusal).endswith(cure)


async def test_an_append_without_a_store_ends_at_its_deadline_and_says_why() -> None:
    async with running_engine(ENOUGH, SystemClock()) as endpoint:
        await make_table(parse("messages", {"endpoint": endpoint}), SystemClock())
        hs = connect(f"dynamodb://messages?endpoint={endpoint}", retries=Retries(deadline_s=0))
        await hs.__aenter__()
    try:
        with pytest.raises(Overloaded, match=r"tried once within 0 s: .*DynamoDB"):
            await hs.log.append("conv", b"hello")
    finally:
        await hs.close()


async def test_a_closed_client_says_so() -> None:
    async with running_engine(ENOUGH, SystemClock()) as endpoint:
        async with a_client(endpoint) as client:
            with pytest.raises(InvalidSetting):
                await client.call("DescribeTable", {"TableName": "absent"})
        with pytest.raises(Closed, match="the DynamoDB store was closed during the call"):
            await client.call("DescribeTable", {"TableName": "absent"})
        await client.close()


async def test_closing_ends_calls_that_wait() -> None:
    slow = EngineSettings(port=0, latency_s=1.0)
    async with running_engine(slow, ManualClock()) as endpoint, a_client(endpoint) as client:
        waiting = [asyncio.ensure_future(client.call("ListTables", {})) for _ in range(300)]
        await connected(client)
        await client.close()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(error) for error in errors} == {Closed}
    assert all("may have been applied" in str(error) for error in errors)


async def connected(client: DynamoClient) -> None:
    while not client._pool.connections:
        await asyncio.sleep(0.001)


async def test_a_call_that_is_cancelled_stays_cancelled() -> None:
    slow = EngineSettings(port=0, latency_s=1.0)
    async with running_engine(slow, ManualClock()) as endpoint, a_client(endpoint) as client:
        waiting = asyncio.ensure_future(client.call("ListTables", {}))
        await connected(client)
        waiting.cancel()
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_credentials_that_do_not_come_end_with_the_attempt() -> None:
    """The log's promise to end a call by itself holds whatever the call waits for."""

    class NoCredentials:
        async def get(self) -> Credentials:
            await asyncio.Event().wait()
            return Credentials("never", "seen")

    client = DynamoClient("http://localhost", "local", NoCredentials(), SystemClock(), 0.05)
    with pytest.raises(Unavailable, match=r"did not answer within 0\.05 s"):
        await client.call("GetItem", {})
    await client.close()


async def test_a_call_that_waits_for_its_turn_says_how_many_are_made_at_once() -> None:
    """The engine's clock stands still: no call ends, and those beyond the first stand in line."""
    slow = EngineSettings(port=0, latency_s=1.0)
    async with running_engine(slow, ManualClock()) as endpoint, a_client(endpoint, 0.3) as client:
        client.turns = Turns(2)
        calls = [client.call("ListTables", {}) for _ in range(5)]
        refusals = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(refusal, Unavailable) for refusal in refusals)
    for refusal in refusals[:2]:
        assert "did not answer within 0.3 s" in str(refusal)
    said = (
        r"the call timed out while it waited for a connection: this process makes \d calls to "
        "DynamoDB at once, the limit is 2; make fewer at once, or start more processes"
    )
    assert re.fullmatch(said, str(refusals[-1]))


async def test_a_deadline_that_ends_the_wait_for_a_turn_names_the_crowd_too() -> None:
    slow, clock = EngineSettings(port=0, latency_s=1.0), SystemClock()
    async with running_engine(slow, ManualClock()) as endpoint, a_client(endpoint, 0.5) as client:
        client.turns = Turns(1)
        first = asyncio.ensure_future(client.call("ListTables", {}))
        while not client.turns.locked():
            await asyncio.sleep(0)

        async def call() -> None:
            with Cut(clock, "the store had not answered")(clock.monotonic_s() + 0.05):
                await client.call("ListTables", {})

        with pytest.raises(Unavailable, match="this process makes 2 calls to DynamoDB at once"):
            await call()
        await asyncio.gather(first, return_exceptions=True)
