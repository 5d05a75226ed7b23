"""Commands that go on, as real processes, for what only a real one shows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

START_S = END_S = 60  # far more than it takes: only a test that fails waits so long
PROGRAM = (sys.executable, "-m", "heatsink")


@dataclass
class Served:
    process: subprocess.Popen[str]
    port: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def names(self) -> list[str]:
        """Of what happened, in order; that it leads may come before or after it has started."""
        return [event["event"] for event in self.events if event["event"] != "leadership.gained"]

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(END_S)


def command_line(
    command: str, *flags: str, files: int | None = None, program: Sequence[str] = PROGRAM
) -> list[str]:
    """`files` is how many the process may have open."""
    limited = [] if files is None else ["sh", "-c", f'ulimit -n {files} && exec "$0" "$@"']
    return [*limited, *program, command, *flags, "--log-json"]


@contextmanager
def serving(
    folder: Path,
    *flags: str,
    command: str = "serve",
    files: int | None = None,
    program: Sequence[str] = PROGRAM,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """Started and ready; ended at the end, with its log read to the last line."""
    whole = command_line(command, "--port", "0", *flags, files=files, program=program)
    process = subprocess.Popen(
        whole,
        cwd=folder,
        env=variables,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    served, started = Served(process), Queue[int | None]()
    reader = Thread(target=_read, args=(served, started))
    reader.start()
    try:
        port = started.get(timeout=START_S)
        assert port is not None, served.events
        served.port = port
        yield served
    finally:
        served.ask_to_stop()
        try:
            served.wait()
        finally:
            process.kill()
            reader.join()
            assert process.stderr is not None
            process.stderr.close()
            process.wait()


def _read(served: Served, started: Queue[int | None]) -> None:
    assert served.process.stderr is not None
    for line in served.process.stderr:
        try:
            event = json.loads(line)
        except ValueError:
            event = {"event": "text", "message": line}
        served.events.append(event)
        if event["event"] == "started":
            started.put(event.get("port"))
    started.put(None)
