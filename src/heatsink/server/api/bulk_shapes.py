"""The shapes of requests and replies about bulk actions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from heatsink.bulk.batch import ITEMS_MAX, Progress, State
from heatsink.bulk.results import DAYS_MAX, RESULT_BYTES_MAX

from .shapes import Limit, SettingLine, Strict, Time

Format = Literal["ndjson", "csv"]


class BulkQuery(Strict, frozen=True):
    tenant: Annotated[str, Meta(min_length=1, max_length=256)] = "default"
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    rate: (
        Annotated[str, Meta(description="Maximum rate at which items start, such as 500/s.")] | None
    ) = None
    on_done: Annotated[
        str, Meta(description="Action to run with the outcome when the batch ends.")
    ] = ""
    spread: bool = True
    at: (
        Annotated[
            datetime, Meta(tz=True, description="Time before which no item starts, with a zone.")
        ]
        | None
    ) = None
    delay: (
        Annotated[float, Meta(ge=0, description="Seconds from now on before which no item starts.")]
        | None
    ) = None

    results: (
        Annotated[Literal["keep"], Meta(description="Keep what the handler returns for each item.")]
        | None
    ) = None
    result_bytes: (
        Annotated[int, Meta(ge=1, le=RESULT_BYTES_MAX, description="Maximum size of one result.")]
        | None
    ) = None
    result_days: (
        Annotated[
            float,
            Meta(gt=0, le=DAYS_MAX, description="Days for which batch and results are kept."),
        ]
        | None
    ) = None

    then: Annotated[str, Meta(description="Action that gets the items that are done.")] | None = (
        None
    )
    otherwise: (
        Annotated[str, Meta(description="Action that gets the items that failed.")] | None
    ) = None

    unique: (
        Annotated[str, Meta(description="Key that at most one batch has in each window.")] | None
    ) = None
    within: (
        Annotated[float, Meta(ge=1, description="Length of the windows of unique, in seconds.")]
        | None
    ) = None

    @property
    def kept(self) -> dict[str, Any]:
        """The options about results, follow-up batches and uniqueness that the caller has set."""
        names = ("results", "result_bytes", "result_days", "then", "otherwise", "unique", "within")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class BatchesQuery(Strict, frozen=True):
    limit: Limit = 50
    tenant: Annotated[str, Meta(max_length=256)] = ""


class FailuresQuery(Strict, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    format: Annotated[
        Format, Meta(description="A line of JSON per item, or CSV with the item as JSON.")
    ] = "ndjson"


class ResultsQuery(Strict, frozen=True):
    after: Annotated[
        int, Meta(ge=-1, le=ITEMS_MAX, description="Index of the last result that you have.")
    ] = -1
    limit: Annotated[int, Meta(ge=1, le=ITEMS_MAX)] = ITEMS_MAX
    format: Annotated[
        Format, Meta(description="A line of JSON per result, or CSV with the value as JSON.")
    ] = "ndjson"


class Accepted(msgspec.Struct, frozen=True):
    """An accepted batch: each of its items will run, whichever process crashes."""

    id: str
    items: int
    state: State


class BatchLine(msgspec.Struct, frozen=True):
    """A batch. `done`, `failed`, `cancelled` and `lost` count only parts that have ended."""

    id: str
    action: str
    tenant: str
    state: State
    items: int
    priority: int
    rate: str | None
    submitted: Time
    ended: Time | None
    reason: str
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: int = 0


class BatchList(msgspec.Struct, frozen=True):
    batches: list[BatchLine]


class Underway(msgspec.Struct, frozen=True):
    """The progress of the newest batches that have not ended."""

    progress: list[Progress]


class KeyUseLine(msgspec.Struct, frozen=True):
    """How one key of a limit is used: items that run, and places that are waited for."""

    key: str
    running: int
    waiting: int


class LimitLine(msgspec.Struct, frozen=True):
    """A limit that running workers have.

    `allows` is what it allows now, and `declared` is what its actions declare. `changed` is what an
    operator has set instead, or empty. `uses` has the keys with the longest lines.
    """

    name: str
    allows: str
    declared: str
    changed: str
    actions: list[str]
    uses: list[KeyUseLine]


class ControlLines(msgspec.Struct, frozen=True):
    """The limits in use, and what operators have changed for tenants, actions and limits."""

    limits: list[LimitLine]
    settings: list[SettingLine]
