"""What `explain` says in words."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from heatsink import BucketRules, connect
from heatsink.coordinator.explainer import Explanation, what_the_store_can_do
from heatsink.errors import Throttled
from heatsink.heat.heat import KeyHeat, PartitionHeat
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.layouts import COLD, Layout
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


NO_RELIEF = "one item that everybody updates gets no relief"
STAY = "items from before the key was spread: they stay where they are"


def explained(subject: Subject, buckets: int, **others: Any) -> str:
    layout = Layout.of([(1_000, buckets)] if buckets > 1 else [])
    return str(Explanation(subject.text, layout, 2_000, None, None, None, **others))


def test_a_spread_key_of_a_users_table_is_told_what_buckets_cannot_help() -> None:
    key = Subject(Kind.TABLE, "chat/r1")
    said = explained(key, 4)
    assert NO_RELIEF in said
    assert STAY in said
    assert NO_RELIEF not in explained(key, 1)
    assert NO_RELIEF not in explained(Subject(Kind.KEY, "conv_abc123"), 4)


def test_a_key_whose_table_is_not_adopted_is_told_the_command() -> None:
    key = Subject(Kind.TABLE, "chat/r1")
    said = explained(key, 1, is_held=True, completing="heatsink adopt URL chat --complete")
    assert "no second bucket before the table's adoption is complete: " in said
    assert said.endswith("run heatsink adopt URL chat --complete")
    assert "adoption" not in explained(key, 1)


def test_a_key_in_a_dry_run_is_told_how_many_buckets_it_would_have_had() -> None:
    key = Subject(Kind.TABLE, "chat/r1")
    assert "why     a dry run: it would have had 8 buckets" in explained(
        key, 1, is_held=True, in_trial=8
    )
    assert "why     never hot" in explained(key, 1, is_held=True)


@pytest.mark.parametrize(
    "others", [{"buckets": 1}, {"buckets": 4}, {"buckets": 1, "is_held": True}]
)
def test_items_without_a_usable_time_are_named(others: Any) -> None:
    unspread = "80% of the recent puts carry no time"
    said = explained(Subject(Kind.TABLE, "chat/r1"), unspread=unspread, **others)
    assert said.endswith(f"  but     {unspread}")
    other = explained(Subject(Kind.KEY, "conv_abc123"), unspread=unspread, **others)
    assert unspread not in other


def explained_heat(heat: KeyHeat | None, unreported_s: float | None = None) -> str:
    """What `explain` says about the heat of a key."""
    made = Explanation("k", COLD, 1, None, None, heat, unreported_s, leads=True)
    (said,) = (line for line in made.lines if line.startswith("  heat"))
    return said.removeprefix("  heat    ")


@pytest.mark.parametrize(
    ("below_s", "bound_s", "words"),
    [
        (0.0, 0.0, "exact"),
        (0.9, 0.4, "exact"),
        (123.4, 231.6, "877 to 1,232 units/s with 99.9 % confidence"),
        (0.0, 40.0, "1,000 to 1,040 units/s with 99.9 % confidence"),
        (123.4, None, "or more: reports are missing"),
    ],
)
def test_the_accuracy_of_a_rate_is_explained(
    below_s: float, bound_s: float | None, words: str
) -> None:
    heat = KeyHeat(1_000.0, 1_000.0, 20.0, 3.0, bound_s, below_s=below_s)
    assert explained_heat(heat) == f"1,000 writes/s ({words}), 20 reads/s, 3 throttled/s"


def test_a_key_that_is_not_listed_has_at_most_what_may_be_unreported() -> None:
    most = "too cold to be reported: at most {}/s with 99.9 % confidence"
    assert explained_heat(None, 125.2) == most.format("126 units")
    assert explained_heat(None, 0.0) == most.format("1 unit")
    assert explained_heat(None) == (
        "not known yet: the first report of heat comes a second or two after the start, or is late"
    )
