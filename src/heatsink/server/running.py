"""How a process of Heatsink runs until a signal ends it, and how it logs.

This module imports no web server, so that a command that needs none starts fast.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HUMAN = "%(asctime)s %(levelname)-7s %(message)s"
INDENT = "  "
_encode = msgspec.json.Encoder(enc_hook=str).encode
serving = logging.getLogger("heatsink.serve")


class Ending:
    """Ends a service when a signal arrives.

    If the service has set `stop`, the signal calls `stop`. If the service is still starting, the
    signal cancels the starting task instead. If a library swallows the cancellation, `stop` is
    called as soon as the service sets it.
    """

    def __init__(self, starting: asyncio.Task[Any]) -> None:
        self._stop: Callable[[], object] | None = None
        self.cancelled = False
        self.number: int | None = None
        """The signal that came first."""
        self._starting = starting

    @property
    def stop(self) -> Callable[[], object] | None:
        return self._stop

    @stop.setter
    def stop(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        if self.number is not None:
            stop()

    def end(self, number: int) -> None:
        self.number = self.number or number
        if self._stop is not None:
            self._stop()
        elif not self.cancelled:
            self.cancelled = self._starting.cancel()


@contextmanager
def until_signal(noted: Sequence[int] = ()) -> Iterator[Ending]:
    """Run the block until SIGINT or SIGTERM arrives, then let the block clean up.

    Yields the `Ending` on which a service sets `stop`. `noted` are signals that arrived before the
    event loop ran: see `noting_signals`.
    """
    starting, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert starting is not None
    ending = Ending(starting)
    for number in SIGNALS:
        loop.add_signal_handler(number, ending.end, number)
    if noted:
        ending.end(noted[0])
    try:
        yield ending
    except asyncio.CancelledError:
        if not ending.cancelled or starting.uncancel():
            raise


def default_signals() -> None:
    """Restore the default signal handlers: the next signal then ends this process immediately."""
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


@contextmanager
def noting_signals() -> Iterator[Sequence[int]]:
    """Yield a list that collects the signals which arrive during the block.

    Use it before an event loop can handle signals, and pass the list to `until_signal`.
    """
    noted: list[int] = []
    before = {number: signal.signal(number, lambda n, _: noted.append(n)) for number in SIGNALS}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_service(service: Callable[[Ending], Awaitable[None]]) -> None:
    """Run a service until it ends or a signal ends it.

    Raises KeyboardInterrupt if the signal was SIGINT (Ctrl-C).
    """
    if run(service) == signal.SIGINT:
        raise KeyboardInterrupt


def run(
    service: Callable[[Ending], Awaitable[None]],
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int | None:
    """Run a service until it ends or a signal ends it.

    Returns the number of the signal, or None if no signal arrived. A signal ends the service even
    if it arrives before the event loop runs. `new_loop` makes the event loop; None means asyncio's.
    """

    async def until_ended(noted: Sequence[int]) -> int | None:
        with until_signal(noted) as ending:
            await service(ending)
        return ending.number

    with noting_signals() as noted, asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(until_ended(noted))


def one_line(text: str) -> str:
    """Escape every character that ends a line, controls a terminal or hides other characters."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class TextLines(logging.Formatter):
    """Formats each log record as one line of text, followed by an indented traceback if it has one.

    Messages contain keys and other text from clients. Line breaks in messages are escaped, so that
    a client cannot forge a record.
    """

    def __init__(self) -> None:
        super().__init__(HUMAN)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(INDENT + one_line(line) for line in text.split("\n"))


class JsonLines(logging.Formatter):
    """Formats each log record as one JSON object on one line.

    The `event` and the `fields` that are passed as `extra={"event": …, "fields": {…}}` become
    members of the object.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", "log"),
            "message": _utf8(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = _utf8(self.formatException(record.exc_info))
        return _encode(line).decode()


def _utf8(text: str) -> str:
    """Escape lone surrogates, which JSON cannot hold."""
    return text.encode(errors="backslashreplace").decode()


def set_up(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(
        logging.ERROR
    )  # a client's bad request is not worth a line
    for name in ("heatsink.serve", "heatsink.audit", "heatsink.lead"):
        logging.getLogger(name).setLevel(logging.INFO)


def announce(as_json: bool, event: str, message: str, **fields: Any) -> None:
    """Announce that the process runs: as text on standard output, or as a JSON log line."""
    if as_json:
        tell(event, message, **fields)
    else:
        click.echo(message)


def tell(event: str, message: str, **fields: Any) -> None:
    serving.info(message, extra={"event": event, "fields": fields})
