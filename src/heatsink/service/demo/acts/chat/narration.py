"""What happens right now, for somebody who never heard of hot partitions."""

from __future__ import annotations

import msgspec

from heatsink.service.demo.lanes.lane import LaneNow


class Narration(msgspec.Struct, frozen=True):
    plain: str
    heatsink: str


def narrate(plain: LaneNow, heatsink: LaneNow, limit: int) -> Narration:
    return Narration(_of_plain(plain, limit), _of_heatsink(heatsink, limit))


def _of_plain(now: LaneNow, limit: int) -> str:
    offered, refused, gone = now.rates.offered_s, now.rates.throttled_s, now.totals.dropped
    gets = f"The conversation gets {offered:,} writes/s"
    if refused and offered > limit:
        return (
            f"{gets}; its one partition takes {limit:,}. The rest is refused and tried again. "
            f"After three tries a message is gone: {gone:,} so far."
        )
    if refused or now.totals.waiting > limit / 2:
        return "The rush is over, but those who were refused still try again and crowd it."
    if offered > limit:
        return f"{gets}, its one partition takes {limit:,}. A small reserve helps for a moment."
    if gone:
        return f"Calm again. But {gone:,} messages never got in."
    return f"{gets}. Its one partition takes {limit:,}: all is well."


def _of_heatsink(now: LaneNow, limit: int) -> str:
    spread, offered = now.spread, now.rates.offered_s
    if now.rates.throttled_s:
        return _of_surprise(now)
    if spread.target > spread.buckets:
        return (
            f"{offered:,} writes/s and rising. Heatsink sees the limit coming: within a second it "
            f"spreads the conversation over {_partitions(spread.target)}."
        )
    if spread.target < spread.buckets:
        return (
            f"The rush is over: Heatsink goes back from {spread.buckets} to "
            f"{_partitions(spread.target)}. No message has to be moved."
        )
    if spread.buckets > 1:
        each = offered // spread.buckets
        return (
            f"{offered:,} writes/s over {_partitions(spread.buckets)}, about {each:,} each: "
            f"every one stays under its limit of {limit:,}."
        )
    if spread.widest > 1:
        return "One partition again, for new messages. Readers still find all the older ones."
    return f"{offered:,} writes/s: one partition is enough. Heatsink only counts."


def _of_surprise(now: LaneNow) -> str:
    if now.spread.buckets == 1:
        return (
            "More came at once than one partition takes. Those refused wait and try again while "
            "Heatsink spreads the conversation; none is dropped."
        )
    return (
        f"New messages go to {_partitions(now.spread.buckets)} by now. The {now.totals.waiting:,} "
        "that came before are still let in where they belong; none is dropped."
    )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
