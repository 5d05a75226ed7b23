"""Workers of bulk actions as real processes, and a journal of every start of every item."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, chdir, contextmanager
from pathlib import Path
from time import monotonic

import msgspec
from click.testing import CliRunner, Result

from heatsink.cli import main
from heatsink.client.queue import Queue, connect_queue
from heatsink.testing.redis import RedisServer

HEATSINK = [sys.executable, "-m", "heatsink"]
Process = subprocess.Popen[bytes]
APP = """
import asyncio, os, time
from heatsink.bulk import Actions, Fail

actions = Actions()
journal = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(context):
    entry = f"{context.batch} {context.index} {os.getpid()} {time.monotonic()}\\n"
    os.write(journal, entry.encode())


@actions.action("brief")
async def brief(item, context):
    note(context)
    await asyncio.sleep(0.03)


@actions.action("slow")
async def slow(item, context):
    note(context)
    await asyncio.sleep(0.4)


@actions.action("deadly")
async def deadly(item, context):
    note(context)
    if item["n"] == 7:
        os._exit(9)
    await asyncio.sleep(0.02)


@actions.action("picky", max_attempts=2, backoff_s=0.05)
async def picky(item, context):
    note(context)
    if item["name"] == "wrong":
        raise Fail("the name is wrong")
"""


class Start(msgspec.Struct, frozen=True):
    """An item was handed to its handler."""

    batch: str
    index: int
    pid: int
    at_s: float


class Workers:
    """`heatsink worker` processes of one application, in its folder."""

    def __init__(self, redis: RedisServer, folder: Path, lease_s: float) -> None:
        self.redis = redis
        self.lease_s = lease_s
        self.killed_s: dict[int, float] = {}
        self.folder = folder
        self._logs: dict[Process, Path] = {}
        (folder / "myapp.py").write_text(APP)
        (folder / "journal").touch()

    def start(self, *more: str, workers: int = 4) -> Process:
        options = ["--queue", self.redis.url, "--lease", str(self.lease_s)]
        command = [*HEATSINK, "worker", "myapp:actions", *options, "--workers", str(workers)]
        command += more
        log = self.folder / f"worker-{len(self._logs)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=output)
        self._logs[process] = log
        return process

    def is_ready(self, process: Process) -> bool:
        return "Ctrl-C stops it" in self._logs[process].read_text()

    def said(self) -> str:
        return "".join(log.read_text() for log in self._logs.values())

    def kill(self, process: Process) -> None:
        self.killed_s[process.pid] = monotonic()
        process.kill()
        process.wait()

    def end(self) -> None:
        for process in self._logs:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def journal(self) -> list[Start]:
        lines = (self.folder / "journal").read_text().splitlines()
        words = (line.split() for line in lines)
        return [Start(batch, int(index), int(pid), float(at)) for batch, index, pid, at in words]

    def starts(self) -> defaultdict[str, Counter[int]]:
        """For each batch, how often each of its items started."""
        counts = defaultdict[str, Counter[int]](Counter)
        for start in self.journal():
            counts[start.batch][start.index] += 1
        return counts

    def starts_of(self, batch: str) -> Counter[int]:
        return self.starts()[batch]

    def rerun(self) -> dict[tuple[str, int], list[Start]]:
        """The items that started more than once."""
        starts = defaultdict(list)
        for start in self.journal():
            starts[start.batch, start.index].append(start)
        return {item: several for item, several in starts.items() if len(several) > 1}


@contextmanager
def running_workers(redis: RedisServer, folder: Path, lease_s: float) -> Iterator[Workers]:
    workers = Workers(redis, folder, lease_s)
    try:
        yield workers
    except BaseException as error:
        error.add_note(workers.said()[-4_000:])
        raise
    finally:
        workers.end()


@asynccontextmanager
async def client(redis: RedisServer) -> AsyncIterator[Queue]:
    async with connect_queue(redis.url) as queue:
        yield queue


async def recorded(queue: Queue) -> int:
    """Results that were written, over all partitions: one too many would show."""
    plan = await queue.bulk.plan()
    loads = [await queue.stores.queue.load(number) for number in range(plan.high_water)]
    return sum(load.done + load.failed for load in loads)


def heatsink(folder: Path, *words: str) -> Result:
    """A command as a user types it in that folder, in this process."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        with chdir(folder):
            return CliRunner().invoke(main, words, env={"COLUMNS": "200"})
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if getattr(sys.modules[name], "__file__", None) == str(folder / f"{name}.py"):
                del sys.modules[name]
