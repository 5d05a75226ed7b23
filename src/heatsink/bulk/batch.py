"""A batch's record: what was submitted, where its parts are, and its progress."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown

from .items import Gap, Run, Span, merged, span_of_gap, spans_of, total, without

State = Literal[
    "open", "running", "paused", "cancelling", "done", "failed", "lost", "cancelled", "aborted"
]
FINAL: frozenset[State] = frozenset(("done", "failed", "lost", "cancelled", "aborted"))
PERIODS_S = {"s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0}
PERIODS_S |= {"h": 3600.0, "hour": 3600.0}
KEEP_MS = 7 * 86_400_000  # how long the record of an ended or abandoned batch is kept
RATE_MAX = 10_000_000
_encoded = msgspec.msgpack.Encoder().encode


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in any period of `period_s` seconds."""

    count: int
    period_s: float = 1.0

    @property
    def per_s(self) -> float:
        """Starts per second."""
        return self.count / self.period_s

    def __str__(self) -> str:
        unit = next(name for name, length_s in PERIODS_S.items() if length_s == self.period_s)
        return f"{self.count}/{unit}"


def parse_rate(text: str) -> Rate:
    count, slash, unit = text.partition("/") if isinstance(text, str) else ("", "", "")
    number = count.strip()
    whole = number.isascii() and number.isdecimal()
    if not slash or not whole or unit.strip() not in PERIODS_S or not 0 < int(number) <= RATE_MAX:
        raise InvalidSetting(
            f"rate must be like '500/s', '30000/min' or '100/h', not {shown(text)}", field="rate"
        )
    return Rate(int(number), PERIODS_S[unit.strip()])


class PartEnd(msgspec.Struct, frozen=True):
    """How a part ended: what its partition reports to the batch's home."""

    batch: str
    part: str
    lap: int
    done: int
    failed: int
    cancelled: int

    @property
    def items(self) -> int:
        """Items with a result: none if a server lost the whole part."""
        return self.done + self.failed + self.cancelled


class PartPlace(msgspec.Struct, frozen=True):
    """A part in one partition: its number of items, their checksum, and which items they are.

    The partition's server has lost the `missing` items. It had lost the `moved` ones too, and they
    were submitted again into another part.
    """

    id: str
    partition: int
    items: int
    digest: int = 0
    runs: tuple[Run, ...] = ()
    missing: tuple[Span, ...] = ()
    moved: tuple[Span, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """The items that should be there."""
        return without(spans_of(self.runs), self.moved)

    def at(self, gaps: Iterable[Gap]) -> tuple[Span, ...]:
        """Its items in these gaps."""
        return without((span_of_gap(self.runs, gap) for gap in gaps), self.moved)


class Batch(msgspec.Struct, frozen=True):
    """The record of a batch.

    `generation` tells apart submissions of the same id, of which at most one is ever sealed. Until
    then the submitter sets `renewed_ms` now and then. `lap` counts retries of the failed items.
    `on_done` is an action or a URL. `trace` is the trace in which it was submitted. `fingerprint`
    is a digest of the items, if the caller chose the id. `restored` counts how often lost items
    were submitted again. `tag` is a digest of the record, since a server that lost its newest
    writes may assign the same version twice.
    """

    id: str
    action: str
    tenant: str
    submitted_ms: int
    state: State = "open"
    generation: str = ""
    priority: int = 0
    weight: float = 1.0
    rate: Rate | None = None
    on_done: str = ""
    items: int = 0
    parts: tuple[PartPlace, ...] = ()
    ends: tuple[PartEnd, ...] = ()
    lap: int = 0
    ended_ms: int = 0
    reason: str = ""
    version: int = 0
    renewed_ms: int = 0
    trace: str = ""
    fingerprint: str = ""
    restored: int = 0
    tag: str = ""

    def next(self) -> Batch:
        """The same batch with the next version, as it is stored."""
        newer = msgspec.structs.replace(self, version=self.version + 1, tag="")
        return newer.tagged()

    def tagged(self) -> Batch:
        digest = blake2b(_encoded(msgspec.structs.replace(self, tag="")), digest_size=8)
        return msgspec.structs.replace(self, tag=digest.hexdigest())

    @property
    def missing(self) -> tuple[Span, ...]:
        """The items that servers are known to have lost."""
        return merged(span for part in self.parts for span in part.missing)

    @property
    def lost(self) -> int:
        return total(self.missing)

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state in FINAL

    @property
    def is_sealed(self) -> bool:
        return self.state not in ("open", "aborted")


class Progress(msgspec.Struct, frozen=True):
    """The progress of a batch."""

    id: str
    action: str
    tenant: str
    state: State
    accepted: int
    """All items of the batch, stored durably."""
    done: int
    """Items that succeeded."""
    failed: int
    """Items that failed for good."""
    cancelled: int
    """Items that will not run."""
    lost: int
    """Items that the queue's servers have lost. Submit the same items with the same id to run
    exactly these."""
    running: int
    """Items that workers are running."""
    waiting: int
    """Items that wait for a worker, for their rate limit or for their next attempt."""
    eta_s: float | None
    """Estimated seconds left by the pace so far, and at least what the rate limit and back-off
    take. None before the first item is done, while paused, and while no worker can run it."""
    reason: str = ""
    """Why the batch was aborted, which items were lost, or what it waits for: a worker that has the
    action or, if only that is left, its rate limit or back-off."""
    missing: list[Span] = []
    """The lost items as ranges: the index of the first item, and how many."""

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state in FINAL


class Failure(msgspec.Struct, frozen=True):
    """An item that failed for good. `index` counts from 0 in the order of submission."""

    index: int
    item: object
    reason: str
    attempts: int
