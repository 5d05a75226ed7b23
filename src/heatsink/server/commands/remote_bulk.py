"""The calls of `hs.bulk` that the bulk commands use, through a running server's HTTP API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

import msgspec

from heatsink.bulk.batch import Failure, Progress, Result
from heatsink.errors import InvalidSetting
from heatsink.server.api.bulk_shapes import Accepted, BatchLine, BatchList, ControlLines
from heatsink.server.api.requests import RETRY_HEADER

from .remote import Remote

FAILURES_MAX = 1_000_000  # the most that the API gives in one response
_encode = msgspec.json.Encoder().encode
_failure = msgspec.json.Decoder(Failure).decode
_result = msgspec.json.Decoder(Result).decode


class RemoteBulk:
    """Stands in for `Bulk` in a command with `--server`.

    Its calls block the thread until the server answers: a command does one thing at a time.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    async def submit(
        self, action: str, items: Iterable[Any], id: str | None = None, **order: Any
    ) -> Accepted:
        if id is not None and not (id.isprintable() and id.strip() == id):
            raise InvalidSetting(
                "id must be printable characters, without a space at its beginning or end, to "
                f"reach a server, not {id!r}",
                field="id",
            )
        headers = {} if id is None else {RETRY_HEADER: id.encode().decode("latin-1")}
        lines = (_encode(item) + b"\n" for item in items)
        query = {name: _word(value) for name, value in order.items() if value not in (None, "")}
        answer = self._remote.send("v1", "bulk", action, lines=lines, headers=headers, **query)
        return msgspec.convert(answer, Accepted)

    async def controls(self) -> ControlLines:
        return msgspec.convert(self._remote.get("v1", "controls"), ControlLines)

    async def status(self, id: str) -> Progress:
        return msgspec.convert(self._remote.get("v1", "bulk", id), Progress)

    async def list(self, limit: int, tenant: str) -> list[BatchLine]:
        answer = self._remote.get("v1", "bulk", limit=limit, tenant=tenant or None)
        return msgspec.convert(answer, BatchList).batches

    async def failures(self, id: str) -> AsyncIterator[Failure]:
        for line in self._remote.lines("v1", "bulk", id, "failures", limit=FAILURES_MAX):
            yield _failure(line)

    async def results(self, id: str, after: int = -1) -> AsyncIterator[Result]:
        for line in self._remote.lines("v1", "bulk", id, "results", after=after):
            yield _result(line)

    async def cancel(self, id: str) -> None:
        self._remote.post("v1", "bulk", id, "cancel")

    async def pause(self, id: str) -> None:
        self._remote.post("v1", "bulk", id, "pause")

    async def resume(self, id: str) -> None:
        self._remote.post("v1", "bulk", id, "resume")

    async def retry_failed(self, id: str) -> None:
        self._remote.post("v1", "bulk", id, "retry-failed")


def _word(value: object) -> str:
    """Return the value as a word of a query: `true`, not `True`."""
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
