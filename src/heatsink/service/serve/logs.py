"""Logs for people, or one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

HUMAN = "%(asctime)s %(levelname)-7s %(message)s"
INDENT = "  "
_encode = msgspec.json.Encoder(enc_hook=str).encode


def one_line(text: str) -> str:
    """Text with every character escaped that ends a line, steers a terminal or hides others."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


class TextLines(logging.Formatter):
    """One line a record; what follows of a traceback is indented. Keys and the like that clients
    send are logged, so nothing in a message may look like another record."""

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
    """`extra={"event": …, "fields": {…}}` of a log call become members of the object."""

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
    """JSON has no place for a lone surrogate."""
    return text.encode(errors="backslashreplace").decode()


def set_up(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # not each stranger's bad request
    for name in ("heatsink.serve", "heatsink.audit", "heatsink.lead"):
        logging.getLogger(name).setLevel(logging.INFO)


def announce(as_json: bool, event: str, message: str, **fields: Any) -> None:
    """That a process runs: for people on standard output, for machines in its log."""
    if as_json:
        tell(event, message, **fields)
    else:
        click.echo(message)


serving = logging.getLogger("heatsink.serve")


def tell(event: str, message: str, **fields: Any) -> None:
    serving.info(message, extra={"event": event, "fields": fields})
