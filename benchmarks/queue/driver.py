"""A driver as a process: takes orders and answers them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, Literal

import msgspec

from .peers import DRIVERS

PATIENCE_S = 120.0
Verb = Literal["enqueue", "work", "jobs"]


class Answer(msgspec.Struct, frozen=True):
    """Of an order: when it began. Of a group's items: when the last of them ended."""

    seconds: float
    cpu_s: float
    began_s: float = 0.0
    ended_s: float = 0.0
    group: int = -1
    waited_s: float = 0.0
    """Mean time from the call that enqueued an item to the end of the item."""


class Driver:
    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        self._process = process
        self._said = said
        self._ended: dict[int, Answer] = {}

    async def order(self, group: int, size: int, pause_ms: int = 0) -> Answer:
        """Enqueue so many items; returns when that is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d %d %d\n" % (group, size, pause_ms))
        self._process.stdin.flush()
        return await self._answer()

    async def ended(self, group: int) -> Answer:
        """Wait until the last item of a group has ended."""
        while group not in self._ended:
            answer = await self._answer()
            self._ended[answer.group] = answer
        return self._ended[group]

    def has_ended(self, group: int) -> bool:
        """As far as answers were read."""
        return group in self._ended

    async def _answer(self) -> Answer:
        assert self._process.stdout is not None
        read = asyncio.to_thread(self._process.stdout.readline)
        try:
            line = await asyncio.wait_for(asyncio.shield(read), PATIENCE_S)
        except TimeoutError:
            self.kill()
            line = b""
        if not line:
            self._said.seek(0)
            raise RuntimeError(self._said.read()[-2_000:].decode(errors="replace"))
        return msgspec.json.decode(line, type=Answer)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def driving(command: Sequence[str], verb: Verb, url: str, **environment: str) -> Iterator[Driver]:
    with TemporaryFile() as said:
        process = subprocess.Popen(  # noqa: S603  drivers are our own
            [*command, verb],
            cwd=DRIVERS,
            env={**os.environ, "QUEUE_URL": url, **environment, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )
        driver = Driver(process, said)
        try:
            yield driver
        finally:
            driver.kill()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
