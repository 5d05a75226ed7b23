"""`./dev soak --requests N`: mutated requests, none of which may break the emulator.

Most requests are valid. Some get a mutation: another value, type or name, a cut, a bad byte. The
emulator must answer each with 200 or an error of DynamoDB, never with 500, in bounded time and
memory. At least half must parse and a quarter must succeed; otherwise the soak tests too little.

Most requests go straight to the engine. A share goes over a connection to a real server, where also
heads, compression and targets are wrong at times.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import logging
import resource
import sys
import time
from collections import Counter
from random import Random
from typing import Any

import msgspec

from heatsink.emulator.engine import API, Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.testing import ManualClock
from heatsink.testing.dynamodb import LocalDynamoDB

from .mutated import STREAMS, TABLES, Writer, created, index_on, mutated, spoiled

SLOW_S = 2.0  # of CPU time, which a busy machine does not stretch; a socket has a timeout as well
TIMEOUT_S = 30.0
MEMORY_MAX_KB = 300 * 1_024
WARM = 20_000
TEND_EVERY = 50
STEP_S = 20.0  # a day, after which streams are trimmed, passes in about 200,000 requests
PARSED_MIN, GOOD_MIN = 0.5, 0.25
OVER_SOCKET = 0.02
REFUSED = (400, 404, 413, 421, 431)
WRONG_ENCODING = (b"is not compressed as told", b"is cut off", b"is not supported")


def tables() -> list[bytes]:
    """The requests that create the tables of the soak."""
    requests = [
        created(table, ("pk", "sk", "city")[:number]) for number, table in enumerate(TABLES, 1)
    ]
    requests[-1]["GlobalSecondaryIndexes"] = [index_on("city", "ALL")]
    requests[-1]["StreamSpecification"] = {
        "StreamEnabled": True,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    return [msgspec.json.encode(request) for request in requests]


class Passing(ManualClock):
    """A clock that no task waits for."""

    def pass_s(self, seconds: float) -> None:
        self._passed_s += seconds


class InProcess:
    """Sends requests to an engine in this process. Its time passes with the requests."""

    def __init__(self, settings: EngineSettings, seed: int) -> None:
        self._clock = Passing()
        self._engine = Engine(settings, self._clock, Random(seed))
        self._sent = 0

    def __call__(self, target: str, body: bytes) -> tuple[int, bytes]:
        self._sent += 1
        if self._sent % TEND_EVERY == 0:
            self._clock.pass_s(STEP_S)
            self._engine.tend()
        return self._engine.answer(target, body)


class OverSocket:
    """Sends requests to a server, some with a wrong head or a wrong encoding."""

    def __init__(self, dynamodb: LocalDynamoDB, rng: Random) -> None:
        host = dynamodb.url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        self._rng = rng

    def __call__(self, target: str, body: bytes) -> tuple[int, bytes]:
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.0"}
        path, chance = "/", self._rng.random()
        if chance < 0.04:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        elif chance < 0.05:
            headers["Content-Encoding"] = self._rng.choice(("gzip", "deflate", "br", "", "x,y"))
        elif chance < 0.06:
            headers["X-Amz-Target"] = self._rng.choice(("", "x", API, API + "X", target[1:]))
        elif chance < 0.07:
            headers["Accept-Encoding"] = self._rng.choice(("gzip", "deflate;q=x", ",", "*"))
        elif chance < 0.08:
            path = self._rng.choice(("/x", "/control/nope", "/?a=%", "//"))
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        status, answer = response.status, response.read()
        if status == 500 and any(words in answer for words in WRONG_ENCODING):
            return 400, answer  # as DynamoDB does
        return status, answer

    def close(self) -> None:
        self._connection.close()


class Soak:
    """Sends requests and counts the answers."""

    def __init__(self, seed: int, dynamodb: LocalDynamoDB) -> None:
        self._rng = Random(seed)
        self._writer = Writer(self._rng)
        self._inside = InProcess(EngineSettings(write_limit=1e9, read_limit=1e9), seed)
        self._outside = OverSocket(dynamodb, self._rng)
        for body in tables():
            status, answer = self._inside(API + "CreateTable", body)
            assert status == 200, answer
            dynamodb.client().create_table(**msgspec.json.decode(body))
        self.counts: Counter[str] = Counter()
        self.slowest_s = 0.0

    def send(self) -> str | None:
        """Send one request. Returns what the emulator did wrong, if it did."""
        rng = self._rng
        operation, request = self._writer.request()
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
            request = mutated(rng, request)
        body = msgspec.json.encode(request)
        if rng.random() < 0.05:
            body = spoiled(rng, body)
        is_outside = rng.random() < OVER_SOCKET
        send: Any = self._outside if is_outside else self._inside
        target = operation if operation.startswith(STREAMS) else API + operation
        began_s = time.process_time()
        status, answer = send(target, body)
        took_s = time.process_time() - began_s
        self.slowest_s = max(self.slowest_s, took_s)
        self._count(operation, status, answer, is_outside)
        if status not in (200, *(REFUSED if is_outside else REFUSED[:1])) or took_s > SLOW_S:
            return f"{operation} took {took_s:.2f} s of CPU and got {status}: {body!r}"
        return None

    def _count(self, operation: str, status: int, answer: bytes, is_outside: bool) -> None:
        self.counts[str(status)] += 1
        self.counts["parsed"] += b"SerializationException" not in answer
        self.counts["over the socket"] += is_outside
        if status == 200 and operation.startswith(STREAMS) and not is_outside:
            self._writer.learn(msgspec.json.decode(answer))

    def close(self) -> None:
        self._outside.close()


def memory_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(requests: int, seed: int) -> list[str]:
    """Send the requests. Returns what went wrong."""
    with LocalDynamoDB(EngineSettings(port=0, write_limit=1e9, read_limit=1e9), seed) as dynamodb:
        soak, problems, warm_kb = Soak(seed, dynamodb), [], 0
        try:
            for number in range(requests):
                if (problem := soak.send()) is not None:
                    problems.append(f"request {number}: {problem}")
                if number == min(WARM, requests // 2):
                    warm_kb = memory_kb()
        finally:
            soak.close()
    grown_kb = memory_kb() - warm_kb
    counts, share = soak.counts, max(requests, 1)
    if grown_kb > MEMORY_MAX_KB:
        problems.append(f"memory grew by {grown_kb / 1_024:,.0f} MB")
    if counts["parsed"] < PARSED_MIN * share or counts["200"] < GOOD_MIN * share:
        problems.append(f"too few requests parse or succeed: {dict(counts)}")
    parsed, good = counts["parsed"] / share, counts["200"] / share
    print(
        f"{requests:,} requests, {counts['over the socket']:,} over a socket: {parsed:.0%} parsed, "
        f"{good:.0%} got 200, {counts['500']} got 500; "
        f"slowest {soak.slowest_s * 1_000:.0f} ms of CPU, "
        f"memory grew by {grown_kb / 1_024:,.0f} MB"
    )
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak --requests", description=__doc__)
    parser.add_argument("requests", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("heatsink").addHandler(logging.StreamHandler())
    problems = run(arguments.requests, arguments.seed)
    for problem in problems[:20]:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
