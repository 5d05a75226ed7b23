"""What a request costs our DynamoDB emulator, beside dynalite, ministack, moto and dynoxide.

Each engine is a process of its own with one worker; the client is the same for all: raw HTTP over
connections that stay open, so that it costs little. Limits of partitions are set out of reach. What
counts is the CPU time of the engine's process for a request: rates depend on what else the machine
does. All contenders take turns.

- Ours beside itself before it had indexes, streams and legacy parameters (from git's history).
- Writes to a table with a global index beside writes to one without.
- Ours with many partitions that adapt beside a single one that does not: what the map costs.
- Ours beside others. ministack, moto and dynalite are fetched into environments of their own; an
  engine that cannot be had is left out.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
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
from .harness import Bench, Scale, at_least, at_most, interleave, ratio_at_most

CONNECTIONS = 64
KEYS = 200
ROWS = 100
PAGE = 10
TABLE = "benchmark"
INDEXED = "indexed"
INDEX_RATIO = 2.0
BODY = "x" * 200
START_S = 60.0
START_MAX_S = 0.3
LOOK_S = 0.01
WARM_UP = 1  # turns that `interleave` does not count
CPU_CLOCK = 2  # Linux's clock of the CPU time of a process, by its pid
CPU_KNOWN = sys.platform == "linux"
BEFORE = "c213d213ea2935ee3e254e553aab2ea37b2a3979"
BEFORE_RATIO = 1.05
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
ROOT = Path(__file__).resolve().parents[1]
MINISTACK = ROOT / "tests" / "emulator" / "contract" / "ministack.txt"
DYNALITE = "dynalite@4.0.0"
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
    path: str | None = None


def ours(name: str, partitions: int, path: str | None = None) -> Contender:
    port = free_port()
    command = [sys.executable, "-c", OURS, str(port), str(partitions)]
    return Contender(name, command, port, 1.0, path)


def before() -> Contender | None:
    """Ours as it was before indexes. None without git's history."""
    folder = TOOLS / f"engine-{BEFORE[:8]}"
    git = shutil.which("git")
    if not folder.exists() and git is not None:
        command = [git, "-C", str(ROOT), "archive", BEFORE, "src"]
        packed = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        if packed.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
                archive.extractall(folder, filter="data")
    return ours("before", MANY, str(folder / "src")) if folder.exists() else None


def dynalite() -> list[str] | None:
    """The command that starts dynalite. None if it cannot be had here."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return None
    folder = TOOLS / "dynalite"
    program = folder / "node_modules" / "dynalite" / "cli.js"
    if not program.exists():
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
        subprocess.run([*install, DYNALITE], check=False)  # noqa: S603  a fixed command
    return [node, str(program)] if program.exists() else None


def others() -> Iterator[Contender]:
    """The engines of others that are there."""
    for requirements, command, share in (
        (MINISTACK, "ministack", 0.1),
        (MOTO, "moto_server", 0.03),
    ):
        python, port = python_of(requirements), free_port()
        if python is not None:
            options = ["-p", str(port)] if command == "moto_server" else []
            program = [str(python.with_name(command)), *options]
            yield Contender(requirements.stem, program, port, share)
        else:
            print(f" ({requirements.stem} cannot be had here)", file=sys.stderr)
    program, port = dynalite() or [], free_port()
    if program:
        yield Contender(
            "dynalite", [*program, "--port", str(port), "--createTableMs", "0"], port, 0.1
        )
    else:
        print(" (dynalite cannot be had here: it needs npm)", file=sys.stderr)
    if DYNOXIDE.exists():
        port = free_port()
        yield Contender("dynoxide", [str(DYNOXIDE), "--port", str(port)], port, 0.3)
    else:
        print(f" (dynoxide is not there: {GET_DYNOXIDE})", file=sys.stderr)


class Engine(msgspec.Struct, frozen=True):
    """A contender that runs."""

    contender: Contender
    pid: int

    def cpu_s(self) -> float:
        """The CPU time that the process has used so far, of all its threads."""
        if not CPU_KNOWN:
            return 0.0
        return time.clock_gettime((~self.pid << 3) | CPU_CLOCK)


@contextmanager
def started(contender: Contender) -> Iterator[Engine]:
    environment = {**os.environ, "GATEWAY_PORT": str(contender.port), "SERVICES": "dynamodb"}
    if contender.path is not None:
        environment["PYTHONPATH"] = contender.path
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
            await asyncio.sleep(LOOK_S)
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


def get(number: int) -> bytes:
    key = {"pk": {"S": f"full{number % 10}"}, "sk": {"S": f"{number % (10 * ROWS):012}"}}
    return request("GetItem", {"TableName": TABLE, "Key": key})


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
    "GetItem": get,
    "UpdateItem ADD": add,
    f"Query, newest {PAGE}": page,
    "PutItem if absent": partial(put, ConditionExpression="attribute_not_exists(pk)"),
    "PutItem, one key": hot_put,
}
PROMISED = tuple(OPERATIONS)[:4]


def add_costs(bench: Bench, name: str, mine: Trial, other: tuple[str, Trial], limit: float) -> None:
    costs = (f"µs {other[0]}", other[1].cpu_s[WARM_UP:])
    bench.add(name, "µs", mine.cpu_s[WARM_UP:], ratio_at_most(limit), costs)


async def compare_before(bench: Bench, scale: Scale, now: Engine, old: Engine) -> None:
    """What indexes, streams and legacy parameters cost requests that use none of them."""
    for name in PROMISED:
        mine, other = (Trial(one, OPERATIONS[name], scale(1_280, 3_200)) for one in (now, old))
        await interleave(scale(5, 15), mine, other)
        add_costs(bench, f"{name}, CPU", mine, ("before indexes", other), BEFORE_RATIO)


async def compare_index(bench: Bench, scale: Scale, engine: Engine) -> None:
    """What a global index costs: CPU time of the server for a write, with and without it."""
    for name, make in (("PutItem", grouped_put), ("UpdateItem", grouped_add)):
        with_index, without = (
            Trial(engine, partial(make, table=table), scale(1_280, 3_200))
            for table in (INDEXED, TABLE)
        )
        await interleave(scale(5, 15), with_index, without)
        told = f"{name}, one global index, CPU"
        add_costs(bench, told, with_index, ("without", without), INDEX_RATIO)


async def compare_maps(bench: Bench, scale: Scale, many: Engine, one: Engine) -> None:
    """What the map of partitions costs."""
    for name, make in OPERATIONS.items():
        mine, plain = (Trial(engine, make, scale(640, 1_280)) for engine in (many, one))
        await interleave(scale(5, 11), mine, plain)
        told = f"{name}, {MANY} partitions, CPU"
        add_costs(bench, told, mine, (ONE_PARTITION, plain), 1 / MAP_RATIO)


async def compare_engines(bench: Bench, scale: Scale, engines: list[Engine]) -> None:
    """All operations of all engines take turns: what else the machine does, it does to all."""
    trials = [
        [Trial(engine, make, scale(1_920, 2_560)) for engine in engines]
        for make in OPERATIONS.values()
    ]
    rates = iter(await interleave(scale(3, 11), *(trial for row in trials for trial in row)))
    for name, (mine, *theirs) in zip(OPERATIONS, trials, strict=True):
        samples, *_ = (next(rates) for _ in engines)
        bench.add(name, "/s", samples, at_least(10_000) if name == "PutItem" else None)
        for engine, other in zip(engines[1:], theirs, strict=True):
            beside = engine.contender.name
            add_costs(bench, f"{name}, CPU", mine, (beside, other), 1.0)


async def time_to_answer(make: Callable[[], Contender]) -> float:
    """Start an engine and stop it once it answers. Returns how long that took."""
    contender = make()
    began_s = perf_counter()
    with started(contender):
        await reached(contender.port)
        return perf_counter() - began_s


def by_command() -> Contender:
    port = free_port()
    command = [sys.executable, "-m", "heatsink", "dynamo", "--port", str(port)]
    return Contender("ours", command, port, 1.0)


def dynalite_anew() -> Contender:
    port = free_port()
    return Contender("dynalite", [*(dynalite() or []), "--port", str(port)], port, 1.0)


async def compare_starts(bench: Bench, scale: Scale) -> None:
    """How long `heatsink dynamo` takes until it accepts connections."""
    makers = [by_command, *([dynalite_anew] if dynalite() else [])]
    mine, *others = await interleave(
        scale(3, 11), *(partial(time_to_answer, make) for make in makers)
    )
    beside = ("ms dynalite", others[0]) if others else None
    bench.add("start", "ms", mine, at_most(START_MAX_S * 1_000), beside)


async def run(bench: Bench, scale: Scale) -> None:
    await compare_starts(bench, scale)
    with ExitStack() as stack:
        wanted = [ours("ours", MANY), ours(ONE_PARTITION, 1), before(), *others()]
        engines = [stack.enter_context(started(one)) for one in wanted if one is not None]
        for engine in engines:
            port = engine.contender.port
            await reached(port)
            await answers(port, [create(), *map(full_row, range(10 * ROWS))])
        found = {engine.contender.name: engine for engine in engines}
        mine = found.pop("ours")
        await answers(mine.contender.port, [create_indexed()])
        if "before" in found:
            await compare_before(bench, scale, mine, found.pop("before"))
        await compare_index(bench, scale, mine)
        await compare_maps(bench, scale, mine, found.pop(ONE_PARTITION))
        await compare_engines(bench, scale, [mine, *found.values()])
