"""What keys cost: in a server's report, and summed over the fleet."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
UNIT_BYTES = 1024
NOWHERE = -1


class Heat(msgspec.Struct, frozen=True, array_like=True):
    """Counts of one key in one window. Limits are in units: a write costs one per 1,024 bytes.

    `error` is how much of this key may be missing because it was not tracked all the time. `place`
    is the store's partition that took its latest row, where the store tells.
    """

    writes: Count = 0
    write_units: Count = 0
    write_bytes: Count = 0
    reads: Count = 0
    throttles: Count = 0
    error: Count = 0
    place: Annotated[int, msgspec.Meta(ge=NOWHERE)] = NOWHERE


class Report(msgspec.Struct, frozen=True):
    """One server's hottest keys in one window, counted over `elapsed_s`.

    A final report ends the window, and `unreported` bounds what any key that is not listed can have
    had. Reports before it list only keys on the rise, with their counts so far.
    """

    server: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    window: Annotated[int, msgspec.Meta(ge=0)]
    elapsed_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    final: bool
    unreported: Count
    keys: Annotated[dict[str, Heat], msgspec.Meta(max_length=4096)]


class KeyHeat(msgspec.Struct, frozen=True):
    """A key's cost per second over the whole fleet, true within `[rate, rate + bound]`.

    `partition` took its latest row, and in all at most `partition_units_s`, where the store tells.
    """

    write_units_s: float
    writes_s: float
    reads_s: float
    throttles_s: float
    bound_s: float | None
    partition: int | None = None
    partition_units_s: float | None = None

    @property
    def cost_s(self) -> float:
        """What keys are ranked by."""
        return self.write_units_s + self.reads_s + self.throttles_s


class PartitionHeat(msgspec.Struct, frozen=True):
    """What a partition of the store took from the whole fleet in a window, where a store tells."""

    partition: int
    write_units_s: float


class WindowHeat(msgspec.Struct, frozen=True):
    """The fleet's heat in one window; `complete` once no more reports are expected.

    `unreported_s` bounds what any key that is not listed costs. It is None, as is each key's
    `bound_s`, where a server's last report of the window is missing: then there is no bound.
    """

    window: int
    start_s: float
    complete: bool
    keys: dict[str, KeyHeat]
    unreported_s: float | None

    def hottest(self, limit: int) -> WindowHeat:
        """Its costliest keys, the first of them first; all others are below `unreported_s`."""
        ranked = sorted(self.keys.items(), key=lambda item: -item[1].cost_s)
        bound_s = self.unreported_s
        if bound_s is not None:
            unlisted = (heat.cost_s + (heat.bound_s or 0.0) for _, heat in ranked[limit:])
            bound_s = max([bound_s, *unlisted])
        return msgspec.structs.replace(self, keys=dict(ranked[:limit]), unreported_s=bound_s)


def write_units(writes: int, written_bytes: int) -> int:
    """DynamoDB's count: every write rounds up to whole kilobytes; `written_bytes` is their sum."""
    return max(writes, -(-written_bytes // UNIT_BYTES))
