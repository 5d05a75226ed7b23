"""What `explain` says in words."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from heatsink import BucketRules, connect
from heatsink.coordinator.explainer import what_the_store_can_do
from heatsink.errors import Throttled
from heatsink.heat.heat import PartitionHeat
from heatsink.spread.policy import Culprit


async def test_what_the_store_refuses_to_write_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise Throttled("hot")

    async with connect("memory://", window_s=0.2) as hs:
        with monkeypatch.context() as patched:
            patched.setattr(hs.parts.stores.registry, "append", refuse)
            while (explained := await hs.explain("hot")).wanted is None:
                hs.record("hot", writes=100)
                await asyncio.sleep(0.02)
        assert explained.buckets == 1
        assert "the store has refused to write this so far" in str(explained)
        while explained.buckets == 1 or explained.wanted is not None:
            hs.record("hot", writes=100)
            await asyncio.sleep(0.02)
            explained = await hs.explain("hot")
        assert "which the store refuses" not in str(explained)


LESS = "a partition accepts less than bucket_units_s=800"
WHOLE = "one hot key: the store cannot split it, more buckets can"
CROWD = "hot partition, no single hot key: throttled because of other keys in the partition; "


@pytest.mark.parametrize(
    ("culprit", "takes_less", "begins", "says_less"),
    [
        ("key", True, WHOLE, True),
        ("key", False, WHOLE, False),
        ("key", None, WHOLE, False),
        ("partition", None, CROWD, True),
        ("partition", True, CROWD, False),
    ],
)
def test_rules_that_expect_too_much_of_a_partition_are_named(
    culprit: Culprit, takes_less: bool | None, begins: str, says_less: bool
) -> None:
    """Where nobody tells, it may be either; where it is known, the other reason is."""
    said = what_the_store_can_do(culprit, 1, 1, None, BucketRules(), takes_less)
    assert said is not None
    assert said.startswith(begins)
    assert (f"{LESS}: " in said) == says_less


def test_a_spread_key_is_told_of_its_buckets() -> None:
    place = PartitionHeat(3, 1_200.0)
    said = what_the_store_can_do("partition", 1, 4, place, BucketRules(), False)
    assert said is not None
    assert said.startswith("hot partition (3, 1,200 write units/s in all), no single hot bucket: ")
    assert what_the_store_can_do(None, 0, 1, None, BucketRules(), None) is None


async def test_an_unpinned_key_is_neither_pinned_nor_hot_by_its_load() -> None:
    rules = BucketRules(cool_down_s=240.0)
    async with connect("memory://", rules=rules) as hs:
        await hs.pin("calm", buckets=4, reason="launch")
        while (await hs.explain("calm")).buckets != 4:
            await asyncio.sleep(0.02)
        assert (await hs.explain("calm")).hot_by == "pinned"
        await hs.unpin("calm")
        explained = await hs.explain("calm")
    assert explained.hot_by == "unpinned"
    assert re.fullmatch(
        r"was pinned \(launch\), then unpinned at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC: "
        "gets fewer buckets after 240 s of low load",
        explained.reason,
    )
    assert "calm: 4 buckets now (unpinned)" in str(explained)
    kept = msgspec.structs.replace(explained, cool_down_s=None)
    assert kept.reason.endswith("it keeps its buckets, since rules.shrink is off")
