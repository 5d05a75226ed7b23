"""How many requests a second our DynamoDB engine answers, beside ministack, moto and dynoxide.

Each engine is a process of its own with one worker; the client is the same for all: raw HTTP over
connections that stay open, so that it costs little. Limits of partitions are set out of reach. Ours
runs with many partitions that adapt, and once more with a single one that does not: what the map
costs, in many short turns, as rates depend on what else the machine does. Writes to a table with a
global index take turns with writes to one without: what the index costs. ministack and moto are
fetched into environments of their own; an engine that cannot be had is left out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from heatsink.stores.embedded import free_port

from .environments import TOOLS, python_of
from .harness import Bench, Scale, at_least, interleave, ratio_at_least, ratio_at_most

CONNECTIONS = 64
KEYS = 200
ROWS = 100
PAGE = 10
TABLE = "benchmark"
INDEXED = "indexed"
INDEX_RATIO = 2.0
BODY = "x" * 200
START_S = 60.0
WARM_UP = 1  # turns that `interleave` does not count
CPU_KNOWN = Path("/proc/self/stat").exists()
OURS = (
    "import asyncio, sys; from random import Random;"
    "from heatsink.primitives.clock import SystemClock;"
    "from heatsink.emulator.server import serve;"
    "from heatsink.emulator.settings import EngineSettings;"
    "settings = EngineSettings(port=int(sys.argv[1]), write_limit=1e9, read_limit=1e9,"
    " partitions=int(sys.argv[2]), adaptive=sys.argv[2] != '1');"
    "asyncio.run(serve(settings, SystemClock(), Random()))"
)
MANY = 64
ONE_PARTITION = "one partition"
MAP_RATIO = 0.8
MOTO = Path(__file__).with_name("moto.txt")
MINISTACK = Path(__file__).parents[1] / "tests" / "dynamo" / "contract" / "ministack.txt"
DYNOXIDE = TOOLS / "dynoxide" / "dynoxide"
GET_DYNOXIDE = "npm pack @dynoxide/linux-x64, unpacked into .tools/dynoxide"

Make = Callable[[int], bytes]
numbers = count()


class Contender(msgspec.Struct, frozen=True):
    """`share` is how much of the work it gets, so that slow ones do not take minutes."""

    name: str
    command: list[str]
    port: int
    share: float


def contenders() -> list[Contender]:
    """Ours, ours with one partition, and others that are there."""
    found = [_ours("ours", MANY), _ours(ONE_PARTITION, 1)]
    ports = [free_port() for _ in range(3)]
    for requirements, command, port, share in (
        (MINISTACK, ["ministack"], ports[0], 0.1),
        (MOTO, ["moto_server", "-p", str(ports[1])], ports[1], 0.03),
    ):
        python, name = python_of(requirements), requirements.stem
        if python is not None:
            program = str(python.with_name(command[0]))
            found.append(Contender(name, [program, *command[1:]], port, share))
        else:
            print(f" ({name} cannot be had here)", file=sys.stderr)
    if DYNOXIDE.exists():
        command = [str(DYNOXIDE), "--port", str(ports[2])]
        found.append(Contender("dynoxide", command, ports[2], 0.3))
    else:
        print(f" (dynoxide is not there: {GET_DYNOXIDE})", file=sys.stderr)
    return found


def _ours(name: str, partitions: int) -> Contender:
    port = free_port()
    return Contender(name, [sys.executable, "-c", OURS, str(port), str(partitions)], port, 1.0)


class Engine(msgspec.Struct, frozen=True):
    """A contender that runs."""

    contender: Contender
    pid: int

    def cpu_s(self) -> float:
        """What the process has used so far, where the system tells (Linux)."""
        if not CPU_KNOWN:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def started(contender: Contender) -> Iterator[Engine]:
    environment = {**os.environ, "GATEWAY_PORT": str(contender.port), "SERVICES": "dynamodb"}
    process = subprocess.Popen(  # noqa: S603  the commands are the ones above
        contender.command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield Engine(contender, process.pid)
    finally:
        process.terminate()
        process.wait()


async def reached(port: int) -> None:
    until_s = perf_counter() + START_S
    while perf_counter() < until_s:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise TimeoutError(f"nothing listens on port {port}")


def request(operation: str, body: dict[str, Any]) -> bytes:
    encoded = msgspec.json.encode(body)
    return (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n"
        b"X-Amz-Target: DynamoDB_20120810.%s\r\nX-Amz-Date: 20260101T000000Z\r\n"
        b"Authorization: AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/dynamodb/aws4_request, "
        b"SignedHeaders=host, Signature=any\r\nContent-Length: %d\r\n\r\n%s"
        % (operation.encode(), len(encoded), encoded)
    )


async def answers(port: int, made: list[bytes]) -> None:
    """Send each request when the one before is answered, on one connection if it stays open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for one in made:
        writer.write(one)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.index(b"content-length:") + len("content-length:")
        body = await reader.readexactly(int(head[length : head.index(b"\r", length)]))
        if head[9:12] != b"200":
            raise ConnectionError(body.decode())
        if b"connection: close" in head:
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


def create() -> bytes:
    kinds = {"pk": "HASH", "sk": "RANGE"}
    definition = {
        "TableName": TABLE,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": n, "AttributeType": "S"} for n in kinds],
        "KeySchema": [{"AttributeName": name, "KeyType": kinds[name]} for name in kinds],
    }
    return request("CreateTable", definition)


def create_indexed() -> bytes:
    """A table with one global index, which holds whole items."""
    kinds = {"pk": "HASH", "sk": "RANGE"}
    index = {
        "IndexName": "by-group",
        "KeySchema": [{"AttributeName": "group", "KeyType": "HASH"}],
        "Projection": {"ProjectionType": "ALL"},
    }
    names = (*kinds, "group")
    definition = {
        "TableName": INDEXED,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": n, "AttributeType": "S"} for n in names],
        "KeySchema": [{"AttributeName": name, "KeyType": kinds[name]} for name in kinds],
        "GlobalSecondaryIndexes": [index],
    }
    return request("CreateTable", definition)


def grouped_put(number: int, table: str) -> bytes:
    item = {"pk": f"key{number % KEYS}", "sk": f"{number:012}", "body": BODY}
    values = {name: {"S": value} for name, value in item.items()}
    values["group"] = {"S": f"group{number % 50}"}
    return request("PutItem", {"TableName": table, "Item": values})


def grouped_add(number: int, table: str) -> bytes:
    update = {
        "TableName": table,
        "Key": {"pk": {"S": f"counter{number % KEYS}"}, "sk": {"S": "0"}},
        "UpdateExpression": "SET #g = :g ADD #n :one",
        "ExpressionAttributeNames": {"#n": "count", "#g": "group"},
        "ExpressionAttributeValues": {":one": {"N": "1"}, ":g": {"S": f"group{number % 50}"}},
    }
    return request("UpdateItem", update)


def put(number: int, **options: Any) -> bytes:
    item = {"pk": f"key{number % KEYS}", "sk": f"{number:012}", "body": BODY}
    values = {name: {"S": value} for name, value in item.items()}
    return request("PutItem", {"TableName": TABLE, "Item": values, **options})


def hot_put(number: int) -> bytes:
    item = {"pk": {"S": "hot"}, "sk": {"S": f"{number:012}"}, "body": {"S": BODY}}
    return request("PutItem", {"TableName": TABLE, "Item": item})


def add(number: int) -> bytes:
    update = {
        "TableName": TABLE,
        "Key": {"pk": {"S": f"counter{number % KEYS}"}, "sk": {"S": "0"}},
        "UpdateExpression": "ADD #n :one",
        "ExpressionAttributeNames": {"#n": "count"},
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    return request("UpdateItem", update)


def page(number: int) -> bytes:
    query = {
        "TableName": TABLE,
        "KeyConditionExpression": "pk = :pk",
        "ExpressionAttributeValues": {":pk": {"S": f"full{number % 10}"}},
        "ScanIndexForward": False,
        "Limit": PAGE,
    }
    return request("Query", query)


def full_row(number: int) -> bytes:
    item = {"pk": f"full{number % 10}", "sk": f"{number:012}", "body": BODY}
    values = {name: {"S": value} for name, value in item.items()}
    return request("PutItem", {"TableName": TABLE, "Item": values})


class Trial:
    """One operation on one engine."""

    def __init__(self, engine: Engine, make: Make, requests: int) -> None:
        self._engine = engine
        self._make = make
        self._each = max(int(requests * engine.contender.share) // CONNECTIONS, 1)
        self.cpu_s: list[float] = []

    async def __call__(self) -> float:
        """Requests are made beforehand, and sent over many connections at once."""
        port = self._engine.contender.port
        made = [[self._make(next(numbers)) for _ in range(self._each)] for _ in range(CONNECTIONS)]
        used_s, started_s = self._engine.cpu_s(), perf_counter()
        await asyncio.gather(*(answers(port, one) for one in made))
        took_s = perf_counter() - started_s
        self.cpu_s.append((self._engine.cpu_s() - used_s) / (CONNECTIONS * self._each))
        return CONNECTIONS * self._each / took_s


OPERATIONS: dict[str, Make] = {
    "PutItem": put,
    "PutItem if absent": partial(put, ConditionExpression="attribute_not_exists(pk)"),
    "PutItem, one key": hot_put,
    "UpdateItem ADD": add,
    f"Query, newest {PAGE}": page,
}


async def compare_maps(bench: Bench, scale: Scale, many: Engine, one: Engine) -> None:
    """What the map costs, by rates and by the CPU time of the server."""
    for name, make in OPERATIONS.items():
        ours, plain = (Trial(engine, make, scale(1_280, 3_200)) for engine in (many, one))
        rates, plain_rates = await interleave(scale(5, 31), ours, plain)
        other = (f"/s {ONE_PARTITION}", plain_rates)
        bench.add(f"{name}, {MANY} partitions", "/s", rates, ratio_at_least(MAP_RATIO), other)
        if CPU_KNOWN:
            costs = (f"µs {ONE_PARTITION}", plain.cpu_s[WARM_UP:])
            target = ratio_at_most(1 / MAP_RATIO)
            bench.add(f"{name}, CPU of the server", "µs", ours.cpu_s[WARM_UP:], target, costs)


async def compare_index(bench: Bench, scale: Scale, engine: Engine) -> None:
    """What a global index costs: CPU time of the server for a write, with and without it."""
    if not CPU_KNOWN:
        return
    for name, make in (("PutItem", grouped_put), ("UpdateItem", grouped_add)):
        with_index, without = (
            Trial(engine, partial(make, table=table), scale(1_280, 6_400))
            for table in (INDEXED, TABLE)
        )
        await interleave(scale(5, 11), with_index, without)
        plain = ("µs without an index", without.cpu_s[WARM_UP:])
        target = ratio_at_most(INDEX_RATIO)
        costs = with_index.cpu_s[WARM_UP:]
        bench.add(f"{name}, one global index, CPU of the server", "µs", costs, target, plain)


async def compare_engines(bench: Bench, scale: Scale, engines: list[Engine]) -> None:
    """All operations of all engines take turns: what else the machine does, it does to all."""
    trials = [
        [Trial(engine, make, scale(6_400, 12_800)) for engine in engines]
        for make in OPERATIONS.values()
    ]
    rates = iter(await interleave(scale(3, 5), *(trial for row in trials for trial in row)))
    for name in OPERATIONS:
        ours, *others = (next(rates) for _ in engines)
        bench.add(name, "/s", ours, at_least(10_000) if name == "PutItem" else None)
        for engine, samples in zip(engines[1:], others, strict=True):
            other = (f"/s {engine.contender.name}", samples)
            beside = f"{name}, beside {engine.contender.name}"
            bench.add(beside, "/s", ours, ratio_at_least(1), other)


async def run(bench: Bench, scale: Scale) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(started(contender)) for contender in contenders()]
        for engine in engines:
            port = engine.contender.port
            await reached(port)
            await answers(port, [create(), *map(full_row, range(10 * ROWS))])
        ours, one_partition, *others = engines
        await answers(ours.contender.port, [create_indexed()])
        await compare_index(bench, scale, ours)
        await compare_maps(bench, scale, ours, one_partition)
        await compare_engines(bench, scale, [ours, *others])
