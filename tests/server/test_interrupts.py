"""Ctrl-C and SIGTERM: every command ends soon, with its exit code, and leaves nothing behind.

Soon is what the docs promise: two seconds. The time in which the command had work to do, but other
processes had the CPU, does not count. A command that was late gets two more chances, since a disk
may stall, too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import heatsink
from heatsink.cli import terminated_as_interrupted
from heatsink.server.running import Ending
from tests.processes import PROGRAM
from tests.waiting import until

from .test_every_command import ALL

FULL = pytest.mark.full("starts a process for each command; a few of them stay in plain runs")
MARK = "STARTED_BY_TEST"
END_S = 60
PROMISED_S = 2.0  # docs/reference/commands.md
CHANCES = 3
LINES = 3
ROWS = 400_000  # as many as a check cannot read in a moment
INTERRUPTED, TERMINATED = 130, 143
HANDLER = "from heatsink.bulk import Actions\n\nactions = Actions()\n"


@dataclass
class Running:
    """A command in a folder of its own, and a server that never answers it."""

    process: subprocess.Popen[str]
    folder: Path
    silent: socket.socket
    mark: str
    kept: ExitStack
    first_line: str = ""

    def speaks(self) -> None:
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()

    def connects(self) -> None:
        self.silent.settimeout(END_S)
        self.kept.enter_context(self.silent.accept()[0])

    def multiplies(self) -> None:
        until(lambda: len(self.alive()) > 1, "it has child processes")

    def opens_a_database(self) -> None:
        until(lambda: [*self.folder.rglob("*.db")], "it has a database")

    def goes_on(self) -> None:
        """It has printed some lines."""
        assert self.process.stdout is not None
        for _ in range(LINES):
            self.first_line = self.process.stdout.readline() or self.first_line

    def starts_a_redis(self) -> None:
        until(lambda: any(map(_is_redis, self.alive())), "it has a Redis server")

    def reads_the_store(self) -> None:
        """It has read the large database for a while, and is not yet through."""
        until(lambda: _spent_s(self.process.pid) > 1.5, "it has computed for a while")

    def reads_the_trace(self) -> None:
        """Open the named pipe for writing, which waits for a reader; then write nothing."""
        self.kept.enter_context((self.folder / "trace.csv").open("wb"))

    def end(self, number: signal.Signals) -> tuple[str, float]:
        """Send a signal. Returns what the command printed, and after how long it had ended."""
        number_of_it = self.process.pid
        begun_s, held_up_s = time.monotonic(), _held_up_s(number_of_it)
        self.process.send_signal(number)
        until(lambda: _has_ended(number_of_it), "it has ended", look_s=0.01)
        took_s = time.monotonic() - begun_s - (_held_up_s(number_of_it) - held_up_s)
        said, _ = self.process.communicate(timeout=END_S)
        return said, took_s

    def alive(self) -> list[int]:
        """The process and its descendants, found by a mark in their environment."""
        wanted = f"{MARK}={self.mark}".encode()
        found = Path("/proc").glob("[0-9]*/environ")
        return [int(each.parent.name) for each in found if wanted in _variables(each)]


def _variables(environ: Path) -> list[bytes]:
    try:
        return environ.read_bytes().split(b"\0")
    except OSError:
        return []  # the process has ended, or is not ours


def _has_ended(process: int) -> bool:
    """Whether a child has ended. It stays a zombie, whose figures can still be read."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _held_up_s(process: int) -> float:
    """For how long the main thread of a process had work to do and waited for a CPU."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _spent_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _is_redis(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/comm").read_text().startswith(("redis", "valkey"))
    except OSError:
        return False


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Running]:
    folder.mkdir(exist_ok=True)
    (folder / "tmp").mkdir()
    (folder / "queue").mkdir()
    (folder / "queue" / "door").touch()  # so `bulk submit` finds a queue
    (folder / "items.csv").write_text("id\n1\n2\n")
    (folder / "app.py").write_text(HANDLER)
    os.mkfifo(folder / "trace.csv")
    mark = uuid4().hex
    variables = {"TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(folder), MARK: mark}
    keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    with ExitStack() as kept, socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [*PROGRAM, *(each.replace("SILENT", address) for each in arguments)],
            cwd=folder,
            env={**os.environ, **variables, **keys},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running = Running(process, folder, silent, mark, kept)
        try:
            yield running
        finally:
            for number in running.alive():
                os.kill(number, signal.SIGKILL)
            process.communicate()


STORE = "dynamodb://messages?region=eu-west-1&endpoint=http://SILENT"
QUEUE = ("--queue", "redis://SILENT")
SERVER = ("--server", "http://SILENT")
Condition = Callable[[Running], None]
CASES: dict[str, tuple[tuple[str, ...], Condition]] = {
    **{f"lab {name}": ((), Running.multiplies) for name in ("scaling", "reads", "hot-key")},
    **{f"lab {name}": ((), Running.multiplies) for name in ("fairness", "isolation", "rates")},
    **{f"lab {name}": ((), Running.multiplies) for name in ("celebrity", "partitions", "steps")},
    "lab fleet": ((), Running.multiplies),
    "bulk submit": (("tag", "items.csv", "--queue", "embedded:///queue"), Running.speaks),
    "explain": (("key", *SERVER), Running.connects),
    "adopt": ((STORE, "chat"), Running.connects),
    "bench": ((), Running.opens_a_database),
    "bulk cancel": (("batch", *QUEUE), Running.connects),
    "bulk controls": (QUEUE, Running.connects),
    "bulk failures": (("batch", *QUEUE), Running.connects),
    "bulk list": (QUEUE, Running.connects),
    "bulk pause": (("batch", *QUEUE), Running.connects),
    "bulk repartition": (("8", *QUEUE), Running.connects),
    "bulk places": (QUEUE, Running.connects),
    "bulk place": (("1", "redis://other", *QUEUE), Running.connects),
    "bulk resume": (("batch", *QUEUE), Running.connects),
    "bulk results": (("batch", *QUEUE), Running.connects),
    "bulk retry-failed": (("batch", *QUEUE), Running.connects),
    "bulk status": (("batch", *QUEUE), Running.connects),
    "cluster look": (("redis+cluster://SILENT",), Running.connects),
    "cluster balance": (("redis+cluster://SILENT",), Running.connects),
    "coordinator": (("--store", "sqlite:///c.db", "--port", "0"), Running.speaks),
    "decisions": (("--follow", *SERVER), Running.connects),
    "schedules list": (SERVER, Running.connects),
    "schedules set": (("nightly", "tidy", "--every", "60", *SERVER), Running.connects),
    "schedules pause": (("nightly", *SERVER), Running.connects),
    "schedules resume": (("nightly", *SERVER), Running.connects),
    "schedules remove": (("nightly", *SERVER), Running.connects),
    "settings get": (("rules.shrink", *SERVER), Running.connects),
    "settings list": (SERVER, Running.connects),
    "settings set": (("rules.shrink", "false", "--reason", "why", *SERVER), Running.connects),
    "settings unset": (("rules.shrink", *SERVER), Running.connects),
    "timelines explain": (("ada", *SERVER), Running.connects),
    "timelines list": (SERVER, Running.connects),
    "timelines pin": (("ada", "pull", "--reason", "why", *SERVER), Running.connects),
    "timelines unpin": (("ada", *SERVER), Running.connects),
    "demo": (("--headless", "--peak", "100"), Running.speaks),
    "doctor": (("--store", STORE), Running.connects),
    "door serve": (("--port", "0", "--endpoint", "http://SILENT"), Running.connects),
    "dynamo": (("--port", "0"), Running.speaks),
    "fsck": ((STORE,), Running.connects),
    "hot": (SERVER, Running.connects),
    "pin": (("key", "4", "--reason", "launch", *SERVER), Running.connects),
    "plan": (("trace.csv",), Running.reads_the_trace),
    "serve": (("--data", "data", "--port", "0"), Running.speaks),
    "table create": ((STORE,), Running.connects),
    "top": (SERVER, Running.connects),
    "unpin": (("key", *SERVER), Running.connects),
    "verify": ((STORE, "--yes"), Running.connects),
    "worker": (("app:actions", *QUEUE), Running.connects),
}
UNDER_WAY: dict[str, tuple[tuple[str, ...], Condition]] = {
    **{
        f"demo --act {act}": (("--headless", "--brief"), Running.goes_on)
        for act in ("likes", "service", "bulk")
    },
    "lab scaling --live": (("--items", "1000"), Running.starts_a_redis),
    "lab fleet --live": (("--servers", "100"), Running.starts_a_redis),
    "bulk place 0": (("redis://SILENT", "--queue", "embedded:///queue"), Running.connects),
    "fsck sqlite:///rows.db": ((), Running.reads_the_store),
}
"""Further commands, in the middle of their work."""
INSTANT = {"completion", "config", "door keys list", "door keys new", "door keys revoke"}
SERVICES = {"coordinator": (0, 0), "dynamo": (INTERRUPTED, 0), "serve": (INTERRUPTED, 0)}
SERVICES |= {"worker": (INTERRUPTED, 0), "door serve": (INTERRUPTED, 0)}
PLAIN = ("lab scaling", "bulk submit", "explain")
NAMES = [pytest.param(name, marks=() if name in PLAIN else FULL) for name in CASES | UNDER_WAY]


def test_every_command_has_a_case() -> None:
    assert CASES.keys() | INSTANT == ALL.keys()


@pytest.mark.server("it starts processes")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=FULL)], ids=["INT", "TERM"]
)
def test_a_signal_ends_a_command_and_leaves_nothing_behind(
    tmp_path: Path, name: str, number: signal.Signals
) -> None:
    took_s = [ended_in(tmp_path / "first", name, number)]
    while min(took_s) > PROMISED_S and len(took_s) < CHANCES:
        took_s.append(ended_in(tmp_path / f"again-{len(took_s)}", name, number))
    assert min(took_s) <= PROMISED_S, took_s


def ended_in(folder: Path, name: str, number: signal.Signals) -> float:
    """End a command that is under way, and return how long it took."""
    arguments, is_under_way = (CASES | UNDER_WAY)[name]
    folder.mkdir()
    if "rows.db" in name:
        fill(folder / "rows.db")
    with started(folder, *name.split(), *arguments) as command:
        is_under_way(command)
        said, took_s = command.end(number)
        codes = SERVICES.get(name, (INTERRUPTED, TERMINATED))
        assert command.process.returncode == codes[number == signal.SIGTERM], said
        until(lambda: not command.alive(), "an embedded queue ends a second after its last user")
    assert "Traceback" not in said
    assert list((folder / "tmp").iterdir()) == []
    return took_s


def fill(file: Path) -> None:
    """Make a database with one row, and copy the row under many ids of the same millisecond."""
    with heatsink.connect_sync(f"sqlite:///{file}", coordinate=False) as hs:
        hs.log.append("key", b"body")
    database = sqlite3.connect(file)
    (row,) = database.execute("SELECT * FROM rows").fetchall()
    partition, raw, *rest = row
    copies = ((partition, raw[:12] + n.to_bytes(4, "big"), *rest) for n in range(ROWS))
    marks = ", ".join("?" * len(row))
    database.executemany(f"INSERT OR IGNORE INTO rows VALUES ({marks})", copies)  # noqa: S608
    database.commit()
    database.close()


@pytest.mark.server("it starts processes")
def test_submit_says_that_the_accepted_batch_goes_on(tmp_path: Path) -> None:
    arguments, is_under_way = CASES["bulk submit"]
    with started(tmp_path, "bulk", "submit", *arguments) as command:
        is_under_way(command)
        command.process.send_signal(signal.SIGINT)
        said, _ = command.process.communicate(timeout=END_S)
    batch = command.first_line.strip()
    assert f"The batch {batch} is accepted" in said
    assert f"heatsink bulk status {batch}" in said
    assert f"heatsink bulk cancel {batch} --queue embedded:///queue" in said


@pytest.mark.server("it starts processes")
def test_submit_does_not_claim_to_know_what_became_of_an_unconfirmed_batch(tmp_path: Path) -> None:
    with started(tmp_path, "bulk", "submit", "tag", "items.csv", *QUEUE) as command:
        command.connects()
        command.process.send_signal(signal.SIGINT)
        said, _ = command.process.communicate(timeout=END_S)
    assert "To see whether it was accepted: heatsink bulk list --queue redis://127.0.0.1:" in said


async def test_a_signal_whose_cancellation_was_lost_stops_the_service_once_it_runs() -> None:
    starting = asyncio.current_task()
    assert starting is not None
    ending, stopped = Ending(starting), list[str]()
    ending.end(signal.SIGTERM)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # as a library that swallows the cancellation
    starting.uncancel()
    ending.stop = lambda: stopped.append("stopped")
    assert stopped == ["stopped"]


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_interrupts_also_where_a_shell_ignores_ctrl_c(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with terminated_as_interrupted() as terminated, pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert terminated == [signal.SIGTERM]
