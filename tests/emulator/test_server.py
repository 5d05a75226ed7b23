"""HTTP: keep-alive, requests in pieces, what is refused, latency."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from math import inf, nan
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.exceptions import ClientError

from heatsink.emulator.adaptation import Adaptation
from heatsink.emulator.engine import OPERATIONS, TEND_S
from heatsink.emulator.server import TEND_AGAIN_S, running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.connections import ConnectionLimits
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.wire.compression import packed, unpacked
from heatsink.testing import ManualClock

LIST = b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: DynamoDB_20120810.ListTables\r\n"
ANY_PORT = EngineSettings(port=0)
CREATE = (
    b'{"TableName": "%s", "BillingMode": "PAY_PER_REQUEST", "AttributeDefinitions": '
    b'[{"AttributeName": "pk", "AttributeType": "S"}], "KeySchema": '
    b'[{"AttributeName": "pk", "KeyType": "HASH"}]}'
)


def request(body: bytes = b"{}", head: bytes = LIST) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, bytes]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def both(self) -> tuple[bytes, bytes]:
        """The head of an answer and its body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head, await self._reader.readexactly(length)

    async def whole(self) -> bytes:
        """Everything until the server closes the connection."""
        return await self._reader.read()

    async def ended(self) -> bool:
        return await self._reader.read() == b""


async def connect(url: str) -> Wire:
    parts = urlsplit(url)
    return Wire(*await asyncio.open_connection(parts.hostname, parts.port))


async def test_a_connection_serves_many_requests_however_they_are_cut() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        for byte in request():
            wire.writer.write(bytes([byte]))
            await wire.writer.drain()
        wire.writer.write(request() + request())
        for _ in range(3):
            assert await wire.answer() == (200, b'{"TableNames":[]}')
        wire.writer.close()


async def test_a_bug_is_logged_and_the_connection_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("planted")

    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        with monkeypatch.context() as patched:
            patched.setitem(OPERATIONS, "ListTables", (OPERATIONS["ListTables"][0], fail))
            wire.writer.write(request())
            status, body = await wire.answer()
        assert status == 500
        assert b"com.amazonaws.dynamodb.v20120810#InternalServerError" in body
        assert "planted" in caplog.text
        assert "Traceback" in caplog.text
        wire.writer.write(request())
        assert (await wire.answer())[0] == 200
        with monkeypatch.context() as patched:
            patched.setattr("heatsink.emulator.page.answer", fail)
            wire.writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await wire.answer())[0] == 500
        assert await wire.ended()
        wire.writer.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"TableName":"abc","Item":{"a":{"S":"\xff"}}}',
        b'{"TableName":"abc","Item":{"a":{"S":"\\ud800"}}}',
        b'{"TableName":"abc","Item":{"a":{"L":' + b"[" * 5_000,
    ],
)
async def test_a_malformed_value_is_refused_on_a_kept_connection(body: bytes) -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        wire.writer.write(request(body, LIST.replace(b"ListTables", b"PutItem")) + request())
        assert (await wire.answer())[0] == 400
        assert (await wire.answer())[0] == 200
        wire.writer.close()


async def test_the_last_answer_says_that_the_connection_closes() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        for asked in (request(head=LIST + b"Connection: close\r\n"), b"nonsense\r\n\r\n"):
            wire = await connect(url)
            wire.writer.write(asked)
            assert b"\r\nConnection: close\r\n" in (await wire.whole())
            wire.writer.close()


async def test_what_is_not_the_protocol_is_refused() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        wire.writer.write(b"GET /elsewhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await wire.answer())[0] == 404
        wire.writer.write(request(b"{not json"))
        status, body = await wire.answer()
        assert status == 400
        assert b"SerializationException" in body
        wire.writer.write(request(head=LIST.replace(b"ListTables", b"Nonsense")))
        status, body = await wire.answer()
        assert b"UnknownOperationException" in body
        wire.writer.write(request(b'{"NoSuchField":1}'))
        status, body = await wire.answer()
        assert b"ValidationException" in body
        assert b"NoSuchField" in body
        wire.writer.write(b"nonsense\r\n\r\n")
        assert (await wire.answer())[0] == 400
        assert await wire.ended()
        wire.writer.close()


async def test_a_browser_gets_no_permission_to_cross_origins() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        asked = b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
        wire.writer.write(asked % b"")
        assert (await wire.answer())[0] == 404
        wire.writer.write(asked % b"Origin: http://evil.example\r\n")
        assert (await wire.answer())[0] == 403
        wire.writer.close()


async def test_a_page_of_this_machine_gets_permission() -> None:
    page = b"Origin: http://localhost:3000\r\n"
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        wire.writer.write(b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % page)
        head, _ = await wire.both()
        assert b"Access-Control-Allow-Origin: http://localhost:3000" in head
        assert b"x-amz-target" in head
        wire.writer.write(request(head=LIST + page))
        head, body = await wire.both()
        assert b"Access-Control-Allow-Origin: http://localhost:3000" in head
        assert b"TableNames" in body
        wire.writer.write(request())
        head, _ = await wire.both()
        assert b"Access-Control" not in head
        wire.writer.close()


@pytest.mark.parametrize(("name", "bits"), [(b"gzip", 31), (b"deflate", 15)])
async def test_bodies_may_be_compressed(name: bytes, bits: int) -> None:
    machine = zlib.compressobj(wbits=bits)
    body = machine.compress(b'{"Limit": 10}') + machine.flush()
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        wire.writer.write(request(body, LIST + b"Content-Encoding: %s\r\n" % name))
        assert (await wire.answer())[0] == 200
        wire.writer.write(request(body[:-4], LIST + b"Content-Encoding: %s\r\n" % name))
        status, refusal = await wire.answer()
        assert (status, b"cut off" in refusal) == (500, True)
        wire.writer.write(request(b"{}", LIST + b"Accept-Encoding: %s\r\n" % name))
        head, _ = await wire.both()
        assert b"Content-Encoding" not in head  # too short
        wire.writer.close()


async def test_a_long_answer_is_compressed_for_whoever_accepts_it() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        for number in range(50):
            body = CREATE % (b"a-table-with-a-long-name-%02d%s" % (number, b"-" * 60))
            wire.writer.write(request(body, LIST.replace(b"ListTables", b"CreateTable")))
            assert (await wire.answer())[0] == 200
        wire.writer.write(request(b"{}", LIST + b"Accept-Encoding: br, gzip;q=0.8\r\n"))
        head, body = await wire.both()
        assert b"Content-Encoding: gzip" in head
        assert b"x-amz-crc32: %d\r\n" % zlib.crc32(body) in head
        assert b"a-table-with-a-long-name-49" in zlib.decompress(body, 31)
        wire.writer.write(request(b"{}", LIST + b"Accept-Encoding: gzip;q=0\r\n"))
        head, _ = await wire.both()
        assert b"Content-Encoding" not in head
        wire.writer.close()


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (b"gzip, deflate", b"gzip"),
        (b"br, identity, deflate, gzip", b"deflate"),
        (b"gzip;q=0.2, deflate; q = 0.5", b"deflate"),
        (b"*", b"gzip"),
        (b"*, gzip;q=0.5", b"deflate"),
        (b"gzip;q=0", None),
        (b"*;q=0", None),
        (b"identity", None),
        (b"", None),
    ],
)
def test_the_client_chooses_the_encoding(accepted: bytes, chosen: bytes | None) -> None:
    found = packed(b"x" * 5_000, accepted)
    assert (found and found[1]) == chosen


def test_gzip_members_may_follow_each_other() -> None:
    body = gzip.compress(b"one ") + gzip.compress(b"two") + b"junk"
    assert unpacked(body, b"gzip", 100) == b"one two"


async def test_a_small_body_that_unpacks_to_a_large_one_is_refused() -> None:
    machine = zlib.compressobj(wbits=31)
    body = machine.compress(b" " * (17 * 1_024 * 1_024)) + machine.flush()
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        wire.writer.write(request(body, LIST + b"Content-Encoding: gzip\r\n"))
        status, refusal = await wire.answer()
        assert (status, b"too large" in refusal) == (413, True)
        wire.writer.close()


async def test_a_request_that_is_too_large_ends_the_connection() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        wire.writer.write(LIST + b"Content-Length: 20000000\r\n\r\n" + b"x" * 17_000_000)
        assert (await wire.answer())[0] == 413
        wire.writer.close()


async def test_answers_come_after_the_latency(clock: ManualClock) -> None:
    async with running_engine(EngineSettings(port=0, latency_s=0.5), clock) as url:
        wire = await connect(url)
        wire.writer.write(request() + request())
        answer = asyncio.ensure_future(wire.answer())
        while not answer.done():
            await clock.advance(0.1)
        assert clock.monotonic_s() >= 0.5
        await wire.answer()
        wire.writer.close()


async def test_a_port_that_is_taken_is_named() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        port = urlsplit(url).port
        assert port is not None
        with pytest.raises(InvalidSetting, match=str(port)):
            async with running_engine(EngineSettings(port=port), SystemClock()):
                pass


@pytest.mark.parametrize(
    "wrong",
    [
        {"write_limit": 0},
        {"read_limit": inf},
        {"partitions": 0},
        {"partitions": 10**9},
        {"burst_s": -1},
        {"latency_s": nan},
        {"port": 70_000},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        EngineSettings(**wrong)  # type: ignore[arg-type]


async def test_a_browser_gets_the_page_and_the_figures_and_nothing_else() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        for path, status, part in (
            (b"/", 200, b"<title>Partitions"),
            (b"/?x=1", 200, b"<title>Partitions"),
            (b"/page.js", 200, b"fetch("),
            (b"/partitions", 200, b"[]"),
            (b"/../settings.py", 404, b"X-Amz-Target"),
        ):
            wire.writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            answered, body = await wire.answer()
            assert answered == status
            assert part in body
        wire.writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert (await wire.answer())[0] == 404
        wire.writer.close()


async def test_a_mistake_in_tending_is_told_with_its_place_and_costs_one_turn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, tended = ManualClock(), list[Adaptation]()

    def tend(adaptation: Adaptation) -> None:
        tended.append(adaptation)
        if len(tended) == 1:
            raise ZeroDivisionError("of the first table")

    async with running_engine(ANY_PORT, clock) as url:
        for name in ("first", "second"):
            await make_table(parse(name, {"endpoint": url}), clock)
        monkeypatch.setattr(Adaptation, "tend", tend)
        await clock.advance(TEND_S)
        assert len(set(tended)) == 2, "the other table is tended all the same"
        (told,) = caplog.records
        assert told.levelname == "ERROR"
        assert "in tend" in caplog.text
        assert "ZeroDivisionError: of the first table" in caplog.text
        assert "while the partitions of table 'first' were adapted" in caplog.text
        for seconds in (TEND_AGAIN_S, TEND_S):
            before = len(tended)
            await clock.advance(seconds)
            assert len(tended) == before + 2, "it goes on"
    assert len(caplog.records) == 1


def bounded(**limits: float) -> EngineSettings:
    return EngineSettings(port=0, connections=ConnectionLimits(**limits))  # type: ignore[arg-type]


async def test_a_head_that_comes_too_slowly_is_refused() -> None:
    async with running_engine(bounded(header_s=0.05), SystemClock()) as url:
        wire, silent = await connect(url), await connect(url)
        wire.writer.write(LIST)
        status, body = await wire.answer()
        assert (status, body) == (408, b'{"message":"the request\'s head took longer than 0.05 s"}')
        assert await wire.ended()
        assert await silent.ended()
        kept = await connect(url)
        for _ in range(3):
            kept.writer.write(request())
            assert (await kept.answer())[0] == 200
        kept.writer.write(LIST)
        assert (await kept.answer())[0] == 408, "also after requests that came in time"
        for each in (wire, silent, kept):
            each.writer.close()


async def test_an_idle_connection_is_closed_and_one_whose_answer_is_due_is_not() -> None:
    limits = ConnectionLimits(idle_s=0.05)
    settings = EngineSettings(port=0, latency_s=0.3, connections=limits)
    async with running_engine(settings, SystemClock()) as url:
        wire, half = await connect(url), await connect(url)
        wire.writer.write(request())
        half.writer.write(LIST + b"Content-Length: 9\r\n\r\nhalf a ")
        assert await half.ended(), "a body that does not go on"
        assert (await wire.answer())[0] == 200
        assert await wire.ended()
        wire.writer.close()
        half.writer.close()


async def test_of_too_many_connections_those_that_ask_for_nothing_are_closed_first() -> None:
    async with running_engine(bounded(connections=3), SystemClock()) as url:
        wires = [await connect(url) for _ in range(3)]
        for wire in wires[:2]:
            wire.writer.write(request())
            await wire.answer()
        wires[2].writer.write(LIST)
        wires.append(await connect(url))
        assert await wires[2].ended()
        for wire in (wires[0], wires[1], wires[3]):
            wire.writer.write(request())
            assert (await wire.answer())[0] == 200
        for wire in wires:
            wire.writer.close()


async def test_a_large_body_beside_a_small_head_is_taken() -> None:
    async with running_engine(bounded(header_bytes=300), SystemClock()) as url:
        wire = await connect(url)
        for _ in range(2):
            wire.writer.write(request(b'{"Limit": %s7}' % (b" " * 100_000)))
            assert (await wire.answer())[0] == 200
        wire.writer.write(request(head=LIST + b"X: " + b"y" * 700 + b"\r\n"))
        assert (await wire.answer())[0] == 431
        wire.writer.close()


async def test_the_same_host_is_refused_with_the_same_words_as_by_serve() -> None:
    async with running_engine(ANY_PORT, SystemClock()) as url:
        wire = await connect(url)
        wire.writer.write(request(head=LIST.replace(b"localhost", b"rebound.example:8322")))
        status, body = await wire.answer()
        assert status == 421
        said = "this server does not answer to the host 'rebound.example:8322': see --allow-host"
        assert body == b'{"message":"%s"}' % said.encode()
        wire.writer.close()


TOKEN = "a secret"  # noqa: S105  of the test
GUARDED = EngineSettings(port=0, token=TOKEN)


async def test_a_token_is_the_secret_key_of_every_request() -> None:
    async with running_engine(GUARDED, SystemClock()) as url:

        def listed(secret: str) -> list[str]:
            client = boto3.client(
                "dynamodb",
                endpoint_url=url,
                region_name="eu-west-1",
                aws_access_key_id="anybody",
                aws_secret_access_key=secret,
            )
            try:
                return client.list_tables()["TableNames"]
            finally:
                client.close()

        assert await asyncio.to_thread(listed, TOKEN) == []
        with pytest.raises(ClientError, match="InvalidSignatureException"):
            await asyncio.to_thread(listed, "another secret")


@pytest.mark.parametrize(
    ("header", "status", "text"),
    [
        (b"Authorization: Bearer a secret\r\n", 200, b"TableNames"),
        (b"Authorization: Bearer another\r\n", 400, b"InvalidSignatureException"),
        (b"", 400, b"MissingAuthenticationTokenException"),
    ],
)
async def test_a_token_may_be_sent_as_it_is(header: bytes, status: int, text: bytes) -> None:
    async with running_engine(GUARDED, SystemClock()) as url:
        wire = await connect(url)
        for _ in range(2):
            wire.writer.write(request(head=LIST + header))
            found, body = await wire.answer()
            assert found == status
            assert text in body
        wire.writer.close()


async def test_an_address_that_others_reach_needs_a_token() -> None:
    with pytest.raises(InvalidSetting, match="set a token"):
        EngineSettings(host="0.0.0.0", port=0)  # noqa: S104
    anywhere = EngineSettings(host="0.0.0.0", port=0, token=TOKEN)  # noqa: S104
    async with running_engine(anywhere, SystemClock()) as url:
        wire = await connect(url.replace("0.0.0.0", "127.0.0.1"))  # noqa: S104
        wire.writer.write(request(head=LIST.replace(b"localhost", b"db.example")))
        assert b"MissingAuthenticationToken" in (await wire.answer())[1]
        wire.writer.close()
