"""The heat of keys: in one server's report, and summed over the fleet."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
UNIT_BYTES = 1024
NOWHERE = -1


class Heat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The counts of one key in one window. A write costs one unit per started 1,024 bytes.

    `error` is the cost that may be missing because the key was not tracked all the time. `place` is
    the physical partition of the key's latest row, if the store reports it. If `tau` is not 0, the
    counts are an estimate from samples: see `count`. One sample stands for `tau` units.
    """

    writes: Count = 0
    write_units: Count = 0
    write_bytes: Count = 0
    reads: Count = 0
    throttles: Count = 0
    error: Count = 0
    place: Annotated[int, msgspec.Meta(ge=NOWHERE)] = NOWHERE
    tau: Count = 0

    @property
    def cost(self) -> int:
        """The cost by which keys are ranked: the sum of write units, reads and throttles."""
        return self.write_units + self.reads + self.throttles


class Report(msgspec.Struct, frozen=True, gc=False):
    """One server's hot keys in one window, counted over `elapsed_s` seconds.

    The final report ends the window. It lists every key that cost `tau` or more, and samples of
    other keys: see `count`. `units` and `reads` are the totals of all keys. A report with `amends`
    comes after the final report of the same window, and replaces its counts of the listed keys.
    Reports before the final one list only rising keys, with their counts so far.

    A partial report comes from a program without this library (see `plain`). Its counts are per
    second. Its `window` is a time in seconds since 1970; 0 means now.
    """

    server: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    window: Annotated[int, msgspec.Meta(ge=0)]
    elapsed_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    final: bool
    tau: Annotated[int, msgspec.Meta(ge=1, le=10**12)]
    keys: Annotated[dict[str, Heat], msgspec.Meta(max_length=4096)]
    partial: bool = False
    amends: bool = False
    units: Count = 0
    reads: Count = 0


class KeyHeat(msgspec.Struct, frozen=True, gc=False):
    """A key's heat per second over the whole fleet.

    With a confidence of 99.9 %, the key's true cost is between its measured cost minus `below_s`
    and its measured cost plus `bound_s`. If every server counted the key exactly, both are 0.
    `partition` is the physical partition of the key's latest row, if the store reports it.
    `partition_units_s` is an upper bound on the write units that all keys together put on that
    partition.
    """

    write_units_s: float
    writes_s: float
    reads_s: float
    throttles_s: float
    bound_s: float | None
    partition: int | None = None
    partition_units_s: float | None = None
    below_s: float = 0.0

    @property
    def cost_s(self) -> float:
        """The cost by which keys are ranked: the sum of write units, reads and throttles."""
        return self.write_units_s + self.reads_s + self.throttles_s


class PartitionHeat(msgspec.Struct, frozen=True):
    """The fleet's write load on one physical partition, if the store reports partitions."""

    partition: int
    write_units_s: float


class WindowHeat(msgspec.Struct, frozen=True):
    """The fleet's heat in one window. It is `complete` once no more reports are expected.

    A key that is not listed cost at most `unreported_s`, with a confidence of 99.9 %. If a server's
    final report is missing, there is no bound. Then `unreported_s` and each `bound_s` are None.
    Servers start their windows at different times: the earliest window started at `since_s`. If
    `since_s` is None, all windows started at `start_s`.
    """

    window: int
    start_s: float
    complete: bool
    keys: dict[str, KeyHeat]
    unreported_s: float | None
    since_s: float | None = None

    def hottest(self, limit: int) -> WindowHeat:
        """Return a copy of the window with only the `limit` costliest keys, the costliest first.

        A key that is not in the copy cost at most the copy's `unreported_s`.
        """
        ranked = sorted(self.keys.items(), key=lambda item: -item[1].cost_s)
        bound_s = self.unreported_s
        if bound_s is not None:
            unlisted = (heat.cost_s + (heat.bound_s or 0.0) for _, heat in ranked[limit:])
            bound_s = max([bound_s, *unlisted])
        return msgspec.structs.replace(self, keys=dict(ranked[:limit]), unreported_s=bound_s)


def write_units(writes: int, written_bytes: int) -> int:
    """Return an estimate of the write units of `writes` writes that have `written_bytes` together.

    DynamoDB rounds each write up to whole kilobytes.
    """
    return max(writes, -(-written_bytes // UNIT_BYTES))
