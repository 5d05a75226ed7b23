"""Counters in DynamoDB.

A counter's share is the part of the counter's sum that one bucket holds. A share is one item. The
item holds the share's value, the running totals of writers, and the time before which the share is
*sealed*, that is, refuses tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from heatsink.errors import Outdated, TokenExpired, Unavailable
from heatsink.spread.store import SHARE_MAX, Running, Total, check_running, past_the_bound
from heatsink.stores.stores import ConsumptionNotes

from .client import ConditionFailed, Item
from .table import SHARE, TOKEN, TTL_ATTRIBUTE, DynamoTable, integer, key, number, ours, sort_of

KEEP_S = 2 * 86_400
FOLD_ATTEMPTS = 8
OPEN = "(attribute_not_exists(sealed) OR sealed <= :time)"
UP, DOWN = (f"(attribute_not_exists(v) OR v {bound} :room)" for bound in ("<=", ">="))
FAILED = "ConditionalCheckFailed"


class DynamoCounters:
    def __init__(self, table: DynamoTable, meter: ConsumptionNotes) -> None:
        self._table = table
        self._meter = meter

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        record = {
            **key(partition, TOKEN + token),
            "a": number(amount),
            TTL_ATTRIBUTE: number(time_ms // 1000 + KEEP_S),
        }
        put = {
            "Item": record,
            "ConditionExpression": "attribute_not_exists(p)",
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        update = {
            "Key": key(partition, SHARE),
            "UpdateExpression": "ADD v :a, u :one",
            "ConditionExpression": f"{OPEN} AND {UP if amount > 0 else DOWN}",
            "ExpressionAttributeValues": {
                ":a": number(amount),
                ":one": number(1),
                ":time": number(time_ms),
                ":room": number((SHARE_MAX if amount > 0 else -SHARE_MAX) - amount),
            },
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        try:
            cost = await self._table.write_together([{"Put": put}, {"Update": update}])
        except ConditionFailed as failed:
            return await self._added_before(partition, token, time_ms, amount, failed)
        self._note(partition, *cost)
        return None

    def _note(self, partition: str, units: float, place: int | None = None) -> None:
        """Keep the cost of a write, in units, for the heat tracker.

        `place` is the physical partition, if it is known. A cost of one unit need not be kept,
        since the tracker assumes one unit. An add costs four units: it is a transaction of two
        items.
        """
        if units > 1 or place is not None:
            self._meter.notes.append((partition, 0, units, place))

    async def _added_before(
        self, partition: str, token: bytes, time_ms: int, amount: int, failed: ConditionFailed
    ) -> int:
        """Return the amount that an earlier add with the same token added.

        `failed` is the error of the current add. Raises if the share is sealed for tokens of this
        time, or if the amount would exceed the share's bound.
        """
        if failed.codes[1] == FAILED:
            share = failed.items[1] or await self._table.get(key(partition, SHARE), True) or {}
            if integer(share, "sealed") > time_ms:
                raise TokenExpired.by("tokens are remembered")
            if failed.codes[0] != FAILED:
                raise past_the_bound(amount)
        record = failed.items[0] or await self._table.get(key(partition, TOKEN + token), True)
        if record is None:
            raise Unavailable("the token's record has just expired: retry")
        return integer(record, "a")

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        check_running(to)
        request: Item = {
            "Key": key(partition, SHARE),
            "UpdateExpression": "SET #w = :w ADD u :one",
            "ConditionExpression": (
                f"(attribute_not_exists(#w) AND {OPEN}) OR "
                "(#w[0] <= :raised AND #w[1] <= :lowered AND #w[2] = :zero)"
            ),
            "ExpressionAttributeNames": {"#w": _attribute(writer)},
            "ExpressionAttributeValues": {
                ":w": {"L": [number(to.raised), number(to.lowered), number(0), number(time_ms)]},
                ":raised": number(to.raised),
                ":lowered": number(to.lowered),
                ":zero": number(0),
                ":one": number(1),
                ":time": number(time_ms),
            },
            "ReturnConsumedCapacity": "TOTAL",
        }
        try:
            answer = await self._table.call("UpdateItem", request)
        except ConditionFailed:
            return await self._counted(partition, writer)
        cost: Item = answer.body.get("ConsumedCapacity", {})
        self._note(partition, cost.get("CapacityUnits", 0.0), cost.get("Partition"))
        return None

    async def _counted(self, partition: str, writer: bytes) -> Running | None:
        """Find out why the running totals of `writer` were not stored.

        If a fold has already added the writer's totals to the share's value, returns those totals.
        If the stored totals are larger than the refused ones, returns None: nothing is missing.
        Raises `TokenExpired` if the share no longer accepts totals of this writer.
        """
        share = await self._table.get(key(partition, SHARE), consistent=True) or {}
        entry = share.get(_attribute(writer))
        if entry is None:
            raise TokenExpired(
                "the totals of this counter writer are no longer kept: call hs.counters.buffered()"
            )
        raised, lowered, folded, _ = (int(value["N"]) for value in entry["L"])
        return Running(raised, lowered) if folded else None

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        items = await self._table.read_together([key(p, SHARE) for p in partitions])
        return [_total(item or {}) for item in items]

    async def shares(self) -> AsyncIterator[str]:
        start: Item | None = None
        while True:
            items, start = await self._table.page("Scan", {"ConsistentRead": True}, start)
            for item in items:
                if sort_of(item) == SHARE and (integer(item, "v") or _writers(item)):
                    yield item["p"]["S"]
            if start is None:
                return

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        for _ in range(FOLD_ATTEMPTS):
            names = list(dict.fromkeys([*sources, target]))
            items = await self._table.read_together([key(name, SHARE) for name in names])
            shares = {n: i or key(n, SHARE) for n, i in zip(names, items, strict=True)}
            try:
                await self._table.write_together(_folded(shares, sources, target, before_ms))
            except ConditionFailed:
                continue
            return
        raise Outdated("the counter changed during every attempt to fold it: retry")


def _attribute(writer: bytes) -> str:
    return f"w{writer.hex()}"


def _writers(share: Item) -> dict[str, list[int]]:
    named = {name: value for name, value in share.items() if name[0] == "w" and "L" in value}
    return {name: [int(part["N"]) for part in value["L"]] for name, value in named.items()}


@ours("counter", "Restore a backup, or delete the item: the counter then starts again at 0")
def _total(share: Item) -> Total:
    writers = sum(up - down for up, down, folded, _ in _writers(share).values() if not folded)
    return Total(integer(share, "v"), writers, integer(share, "sealed"), integer(share, "folded"))


def _folded(
    shares: dict[str, Item], sources: Sequence[str], target: str, before_ms: int
) -> list[Item]:
    """Return the writes of a fold.

    They seal the shares `sources` and move their values to `target`.

    Each write fails if its share has changed since it was read.
    """
    changed = {name: dict(share) for name, share in shares.items()}
    moved = 0
    for source in sources:
        value = _seal(changed[source], before_ms)
        if source != target:
            moved += value
            changed[source]["v"] = number(0)
    into = changed[target]
    into["v"] = number(integer(into, "v") + moved)
    into["folded"] = number(max(integer(into, "folded"), before_ms))
    return [_replace(shares[name], share) for name, share in changed.items()]


def _seal(share: Item, before_ms: int) -> int:
    """Change the share so that it refuses tokens and writers from before `before_ms`.

    Adds the running totals of such writers to the share's value, and returns the new value.
    """
    sealed_ms = max(integer(share, "sealed"), before_ms)
    value = integer(share, "v")
    for name, (raised, lowered, folded, minted_ms) in _writers(share).items():
        if folded:
            del share[name]
        elif minted_ms < sealed_ms:
            value += raised - lowered
            share[name]["L"][2] = number(1)
    share["v"], share["sealed"] = number(value), number(sealed_ms)
    return value


def _replace(before: Item, after: Item) -> Item:
    seen = integer(before, "u")
    put: Item = {
        "Item": {**after, "u": number(seen + 1)},
        "ConditionExpression": "attribute_not_exists(u)",
    }
    if seen:
        put["ConditionExpression"] = "u = :u"
        put["ExpressionAttributeValues"] = {":u": number(seen)}
    return {"Put": put}
