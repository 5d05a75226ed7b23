"""Where the rows of one key are while its number of buckets changes under its writer."""

from __future__ import annotations

from random import Random

from heatsink import Heatsink, Settings, Uuid7
from heatsink.lab.report import Chart, Series
from heatsink.primitives.keys import key_of
from heatsink.spread.store import Row
from heatsink.stores.memory import memory_stores
from heatsink.testing import SkewedClock, run_on_virtual_time

KEY = "chat"
WRITES_S = 60
PINS = {3: 4, 7: 2, 10: 1}  # from which second on how many buckets are asked for
END_S = 13
COLOURS = {1: 0, 4: 1, 2: 4}


def across_changes() -> Chart:
    rows = run_on_virtual_time(_rows())
    return Chart(
        "The partition of each row of one key, by the time in its id",
        "partition (0: no bucket number)",
        [_series(buckets, rows) for buckets in COLOURS],
        x_title="the time in a row's id, in seconds",
        kind="dots",
    )


async def _rows() -> list[tuple[float, str, Row]]:
    """Each row with the time in its id and the partition in which it was found."""
    clock = SkewedClock()
    stores = memory_stores(clock)
    async with Heatsink(stores, Settings(), clock, Random(1)) as hs:
        began_s = clock.now_s()
        for second in range(END_S):
            if second in PINS:
                await hs.pin(KEY, buckets=PINS[second], reason="to see it change")
            for _ in range(WRITES_S):
                await hs.log.append(KEY, b"hello")
                await clock.sleep(1 / WRITES_S)
        return [
            (Uuid7().time_ms(row.raw) / 1000 - began_s, partition, row)
            async for partition, row in stores.log.scan()
        ]


def _series(buckets: int, rows: list[tuple[float, str, Row]]) -> Series:
    own = sorted(
        (round(time_s, 3), _place(name)) for time_s, name, row in rows if row.buckets == buckets
    )
    name = "one bucket" if buckets == 1 else f"{buckets} buckets"
    times, places = zip(*own, strict=True)
    return Series(name, list(times), list(places), colour=COLOURS[buckets])


def _place(partition: str) -> float:
    _, bucket = key_of(partition)
    return 0.0 if bucket is None else bucket + 1.0
