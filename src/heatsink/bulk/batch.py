"""A batch: what was submitted, where its parts are, and how far it is."""

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
KEEP_MS = 7 * 86_400_000  # a batch that has ended, or never got in
RATE_MAX = 10_000_000
_encoded = msgspec.msgpack.Encoder().encode


class Rate(msgspec.Struct, frozen=True):
    """At most `count` starts in any period of `period_s` seconds."""

    count: int
    period_s: float = 1.0

    @property
    def per_s(self) -> float:
        """The same as a number of starts a second."""
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
            f"rate must be like '500/s', '30000/min' or '100/h', not {shown(text)}"
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
        """Items that have a result. A part that a server lost has ended with none."""
        return self.done + self.failed + self.cancelled


class PartPlace(msgspec.Struct, frozen=True):
    """What was staged in one partition: how much, its checksum, and which items.

    `missing` are those that the partition's server has lost; `moved` are those that it had lost and
    that are in another part now.
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
        """The items of it that stand at these gaps."""
        return without((span_of_gap(self.runs, gap) for gap in gaps), self.moved)


class Batch(msgspec.Struct, frozen=True):
    """`generation` tells one submission of an id from another: only one of them is ever sealed.

    `lap` counts how often the failed items were tried again. `on_done` is an action or a URL.
    Whoever submits it renews it until it is sealed. `trace` is the one that it was submitted in.
    `fingerprint` is of its items, if its id was the caller's choice. `restored` counts how often
    items that a server had lost were submitted again. `tag` is a digest of the record: a server
    that has lost its newest writes gives a version out a second time.
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
        """The same as it is kept, one version on."""
        newer = msgspec.structs.replace(self, version=self.version + 1, tag="")
        return newer.tagged()

    def tagged(self) -> Batch:
        digest = blake2b(_encoded(msgspec.structs.replace(self, tag="")), digest_size=8)
        return msgspec.structs.replace(self, tag=digest.hexdigest())

    @property
    def missing(self) -> tuple[Span, ...]:
        """The items that servers have lost, as far as it was noticed."""
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
    """How far a batch is."""

    id: str
    action: str
    tenant: str
    state: State
    accepted: int
    """Items of the batch: safe."""
    done: int
    """Items that are done."""
    failed: int
    """Items that have failed for good."""
    cancelled: int
    """Items that will not run."""
    lost: int
    """Items that the queue's servers have lost. Submit the same items with the same id to run
    exactly these."""
    running: int
    """Items that workers have now."""
    waiting: int
    """Items that wait: for a worker, their rate or their next attempt."""
    eta_s: float | None
    """Seconds left by the pace so far, and no fewer than its rate limit and back-off take; None
    until there is a pace, while it is paused, and while no worker can run it."""
    reason: str = ""
    """Why it was aborted, which items were lost, or what it waits for: a worker that can run it,
    or, if that is all that is left, its rate limit or back-off."""
    missing: list[Span] = []
    """Which items were lost: the index of the first and how many, for each range."""

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
