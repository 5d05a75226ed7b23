"""What is replayed: requests in the order of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Request(NamedTuple):
    time_s: float
    key: str
    is_write: bool
    size: int


class Trace(Protocol):
    """Requests, oldest first. Each stands for `weight` of them: traces may be samples."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> int: ...

    def requests(self) -> Iterator[Request]: ...

    def done(self) -> float:
        """Which share of the trace has been read, for a progress bar."""
