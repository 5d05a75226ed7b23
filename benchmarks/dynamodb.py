"""Our DynamoDB client beside aiobotocore and boto3, and `append` over that client's bare PutItem.

The engine is ours, a process of its own with limits out of reach: it answers the same to all. What
a client does per put (build, sign, send, parse) is its own CPU time, which the table shows beside
the rate; items have 200 bytes. aiobotocore pins its own botocore, so it runs in an environment of
its own (`aiobotocore.txt`), in a process that waits for its turn; boto3 blocks and takes threads.

The bare put is the client's `call` with the very request an append makes: the row's item if it is
not there yet, the old one if it is, and what it consumed. An append goes through the store's put,
which knows the row's shape: it sends the request as text over the same connections, in one
coroutine less, and reads of the answer only what it cost. That pays for most of what an append does
itself, so the put has a line of its own.
Heatsink's own traffic to the store (it follows the registry) weighs on both. On a busy machine the
rates of client and engine, which want a processor each, say less than the CPU time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, time
from typing import Any

import boto3
from botocore.config import Config

from heatsink.registry.layouts import FIRST_EPOCH
from heatsink.spread.store import Row
from heatsink.stores.dynamodb import dynamodb_stores, make_table
from heatsink.stores.dynamodb.address import LOCAL_REGION, DynamoAddress, parse
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials
from heatsink.stores.dynamodb.table import binary, row_item
from heatsink.stores.embedded import end, free_port, start_tied

from .append import BUCKETS, HOT_PARTITIONS, Plan, Work, append_each, names, nothing, timed
from .append import put_each as store_put_each
from .clients import BODY, CLOCK, client, pin
from .engine import reached
from .environments import python_of
from .harness import Bench, Samples, Scale, interleave, ratio_at_least, ratio_at_most

TABLE = "benchmark"
IN_FLIGHT = 64
KEYS = 200
WARM_UP = 1
NUMBERS_A_TURN = 10_000
REQUIREMENTS = Path(__file__).with_name("aiobotocore.txt")
PLANS = (Plan(1, 256, (5, 31)), Plan(IN_FLIGHT, 2_048, (5, 31)))
AIOBOTOCORE = """
import asyncio, json, sys
from time import perf_counter, process_time
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

async def put_each(client, table, body, numbers):
    for n in numbers:
        item = {"p": {"S": f"key{n % 200}"}, "s": {"B": n.to_bytes(17, "big")}, "b": {"B": body}}
        await client.put_item(TableName=table, Item=item)

async def main(url, region, table, callers):
    key = dict(aws_access_key_id="local", aws_secret_access_key="local", region_name=region)
    config = AioConfig(max_pool_connections=callers)
    make = get_session().create_client("dynamodb", endpoint_url=url, config=config, **key)
    async with make as client:
        for line in sys.stdin:
            first, puts = map(int, line.split())
            shares = [range(first + c, first + puts, callers) for c in range(callers)]
            used_s, started_s = process_time(), perf_counter()
            await asyncio.gather(*(put_each(client, table, b"x" * 200, s) for s in shares))
            took = {"seconds": perf_counter() - started_s, "cpu_s": process_time() - used_s}
            print(json.dumps(took), flush=True)

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""

Shares = list[range]
numbers = count()
ids = count(1)


@asynccontextmanager
async def running_engine() -> AsyncIterator[str]:
    """Our engine as a process of its own; yields its URL."""
    port = free_port()
    limits = ["--write-limit", "1e9", "--read-limit", "1e9"]
    command = [sys.executable, "-m", "heatsink", "dynamo", "--port", str(port), *limits]
    with TemporaryDirectory(prefix="heatsink-bench-") as folder:
        process = start_tied(command, Path(folder), Path(folder) / "log")
        try:
            await reached(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            end(process)


class Puts:
    """One client's turn: so many puts, spread over its callers. Puts a second; CPU beside."""

    def __init__(self, puts: int, callers: int) -> None:
        self._puts = puts
        self._callers = callers
        self._cpu_s: Samples = []

    @property
    def cpu_s(self) -> Samples:
        return self._cpu_s[WARM_UP:]

    async def __call__(self) -> float:
        first = next(numbers) * NUMBERS_A_TURN
        shares = [range(first + c, first + self._puts, self._callers) for c in range(self._callers)]
        seconds, cpu_s = await self._measure(shares)
        self._cpu_s.append(cpu_s / self._puts)
        return self._puts / seconds

    async def _measure(self, shares: Shares) -> tuple[float, float]:
        used_s, started_s = process_time(), perf_counter()
        await self._work(shares)
        return perf_counter() - started_s, process_time() - used_s

    async def _work(self, shares: Shares) -> None:
        raise NotImplementedError


class ThinPuts(Puts):
    """Ours."""

    def __init__(self, dynamo: DynamoClient, puts: int) -> None:
        super().__init__(puts, IN_FLIGHT)
        self._dynamo = dynamo

    async def _work(self, shares: Shares) -> None:
        await asyncio.gather(*map(self._put_each, shares))

    async def _put_each(self, share: range) -> None:
        for n in share:
            place = {"p": {"S": f"key{n % KEYS}"}, "s": binary(n.to_bytes(17, "big"))}
            item = {**place, "b": binary(BODY)}
            await self._dynamo.call("PutItem", {"TableName": TABLE, "Item": item})


class Boto3Puts(Puts):
    """boto3 in threads."""

    def __init__(self, url: str, puts: int, threads: int) -> None:
        super().__init__(puts, threads)
        self._pool = ThreadPoolExecutor(threads)
        self._boto = boto3.client(
            "dynamodb",
            endpoint_url=url,
            region_name=LOCAL_REGION,
            aws_access_key_id="local",
            aws_secret_access_key="local",  # noqa: S106  the engine takes any
            config=Config(max_pool_connections=threads),
        )

    async def _work(self, shares: Shares) -> None:
        loop = asyncio.get_running_loop()
        turns = (loop.run_in_executor(self._pool, self._put_each, share) for share in shares)
        await asyncio.gather(*turns)

    def _put_each(self, share: range) -> None:
        for n in share:
            place: dict[str, Any] = {"p": {"S": f"key{n % KEYS}"}}
            place["s"] = {"B": n.to_bytes(17, "big")}
            self._boto.put_item(TableName=TABLE, Item={**place, "b": {"B": BODY}})

    def close(self) -> None:
        self._pool.shutdown()
        self._boto.close()


class AiobotocorePuts(Puts):
    """aiobotocore in its own environment and process, which measures itself."""

    def __init__(self, process: subprocess.Popen[str], puts: int) -> None:
        super().__init__(puts, IN_FLIGHT)
        self._process = process

    async def _measure(self, shares: Shares) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{shares[0].start} {self._puts}\n")
        self._process.stdin.flush()
        answer = json.loads(await asyncio.to_thread(self._process.stdout.readline))
        return answer["seconds"], answer["cpu_s"]


@contextmanager
def aiobotocore_process(python: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(python), "-c", AIOBOTOCORE, url, LOCAL_REGION, TABLE, str(IN_FLIGHT)]
    with subprocess.Popen(  # noqa: S603  the program is the one above
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process  # the end of its input ends it


def thin_client(address: DynamoAddress) -> DynamoClient:
    return DynamoClient(address.endpoint, address.region, FixedCredentials(), CLOCK)


async def compare_clients(bench: Bench, scale: Scale, address: DynamoAddress) -> None:
    python = python_of(REQUIREMENTS)
    async with AsyncExitStack() as stack:
        dynamo = thin_client(address)
        stack.push_async_callback(dynamo.close)
        ours, others = ThinPuts(dynamo, scale(3_200, 6_400)), dict[str, Puts]()
        for threads in (1, IN_FLIGHT):
            boto = Boto3Puts(address.endpoint, scale(640, 1_600), threads)
            stack.callback(boto.close)
            others[f"boto3, {threads} thread{'s' * (threads > 1)}"] = boto
        if python is not None:
            process = stack.enter_context(aiobotocore_process(python, address.endpoint))
            others["aiobotocore"] = AiobotocorePuts(process, scale(640, 1_600))
        rates = await interleave(scale(3, 9), ours, *others.values())
    show(bench, (ours, rates[0]), list(zip(others, others.values(), rates[1:], strict=True)))


def show(bench: Bench, ours: tuple[Puts, Samples], others: list[tuple[str, Puts, Samples]]) -> None:
    what = f"PutItem, {IN_FLIGHT} in flight"
    if "aiobotocore" not in (name for name, _, _ in others):
        bench.add(f"{what} (aiobotocore cannot be had here)", "/s", ours[1])
    for name, puts, rates in others:
        target = ratio_at_least(4) if name == "aiobotocore" else None
        bench.add(what, "/s", ours[1], target, (name, rates))
        bench.add("CPU of a PutItem", "µs", ours[0].cpu_s, None, (name, puts.cpu_s))


async def put_each(dynamo: DynamoClient, partitions: list[str]) -> None:
    for partition in partitions:
        raw = (int(time() * 1000) << 80 | next(ids)).to_bytes(16, "big")
        request: dict[str, Any] = {
            "TableName": TABLE,
            "Item": row_item(partition, Row(raw, BODY, 0, 1)),
            "ConditionExpression": "attribute_not_exists(p)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            "ReturnConsumedCapacity": "TOTAL",
        }
        await dynamo.call("PutItem", request)


class Turn:
    """Rows written by a plan: seconds per row, and the CPU time of this process beside."""

    def __init__(self, plan: Plan, work: Work, targets: Iterator[str]) -> None:
        self._plan = plan
        self._work = work
        self._targets = targets
        self.cpu_s: Samples = []

    async def __call__(self) -> float:
        used_s = process_time()
        seconds = await timed(self._plan, self._work, self._targets, nothing)
        self.cpu_s.append((process_time() - used_s) / self._plan.rows)
        return seconds


class Contest:
    """Appends, and the store's puts that they make, beside bare PutItems of the same rows."""

    def __init__(self, bench: Bench, scale: Scale, append: Work, put: Work, bare: Work) -> None:
        self._bench = bench
        self._scale = scale
        self._append = append
        self._put = put
        self._bare = bare

    async def run(
        self, plan: Plan, what: str, key: str | None = None, partitions: list[str] | None = None
    ) -> None:
        ours = Turn(plan, self._append, names([key] if key else None))
        put = Turn(plan, self._put, names(partitions))
        bare = Turn(plan, self._bare, names(partitions))
        appends, puts, bares = await interleave(self._scale(*plan.rounds), ours, put, bare)
        add, target = self._bench.add, ratio_at_most(1.05)
        add(f"append, {what}, {plan}", "µs", appends, target, ("bare PutItem", bares))
        add(f"put of the store, {what}, {plan}", "µs", puts, None, ("bare PutItem", bares))
        spent = ("bare PutItem", bare.cpu_s[WARM_UP:])
        add(f"CPU of an append, {what}, {plan}", "µs", ours.cpu_s[WARM_UP:], None, spent)


async def compare_appends(bench: Bench, scale: Scale, address: DynamoAddress) -> None:
    dynamo, stores = thin_client(address), dynamodb_stores(address, CLOCK)
    try:
        async with client(stores) as hs:
            await pin(hs, {"hot": BUCKETS})
            append, put = partial(append_each, hs), partial(store_put_each, stores.log, FIRST_EPOCH)
            contest = Contest(bench, scale, append, put, partial(put_each, dynamo))
            for plan in PLANS:
                await contest.run(plan, "cold keys")
                await contest.run(plan, f"{BUCKETS} buckets", "hot", HOT_PARTITIONS)
    finally:
        await dynamo.close()


async def run(bench: Bench, scale: Scale) -> None:
    async with running_engine() as url:
        address = parse(TABLE, {"endpoint": url})
        await make_table(address, CLOCK)
        await compare_clients(bench, scale, address)
        await compare_appends(bench, scale, address)
