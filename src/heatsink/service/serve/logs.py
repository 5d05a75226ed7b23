"""Logs for people, or one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

HUMAN = "%(asctime)s %(levelname)-7s %(message)s"
_encode = msgspec.json.Encoder(enc_hook=str).encode


class JsonLines(logging.Formatter):
    """`extra={"event": …, "fields": {…}}` of a log call become members of the object."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", "log"),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return _encode(line).decode()


def set_up(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(HUMAN))
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
