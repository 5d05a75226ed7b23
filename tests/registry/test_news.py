"""Signed news: what opens, what does not, and what a follower does with what does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from heatsink.errors import Misconfigured
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.registry import news as relay
from heatsink.registry.decisions import BUCKETS, LogEntry, Meta, Reading, for_key
from heatsink.registry.news import News, Seal
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.stores.memory.messages import MemoryNews
from heatsink.testing import ManualClock

from .test_registry import FOUNDING
from .test_relay import decide

SEAL = Seal(FOUNDING)
OTHER_SECRET = structs.replace(FOUNDING, secret=b"x" * SECRET_BYTES)
OTHER_INCARNATION = structs.replace(FOUNDING, incarnation="j")
ENTRY = LogEntry(3, 5, 2_000, (for_key("k#{}é", BUCKETS, 4, "hot"),))
Forge = Callable[[bytes], bytes]


def flipped(sealed: bytes, bit: int) -> bytes:
    bit %= 8 * len(sealed)
    return bytes(byte ^ (1 << bit % 8) * (n == bit // 8) for n, byte in enumerate(sealed))


def ahead(ahead_ms: int) -> Forge:
    def forge(pair: bytes) -> bytes:
        closed_ms, rest = pair.split(b"|", 1)
        return b"%d|%b" % (int(closed_ms) + ahead_ms, rest)

    return forge


def signed_by(meta: Meta, ahead_ms: int = 400) -> Forge:
    def forge(pair: bytes) -> bytes:
        closed_ms, version, _ = pair.split(b"|", 2)
        return Seal(meta).pair(int(closed_ms) + ahead_ms, int(version))

    return forge


def later_version(pair: bytes) -> bytes:
    closed_ms, version, rest = pair.split(b"|", 2)
    return b"%b|%d|%b" % (closed_ms, int(version) + 1, rest)


def test_what_was_signed_opens() -> None:
    assert SEAL.opened_pair(SEAL.pair(7, 3)) == News(7, 3)
    assert SEAL.opened_entry(SEAL.entry(ENTRY)) == ENTRY


@given(st.integers(min_value=0))
def test_a_flipped_bit_anywhere_is_found(bit: int) -> None:
    assert SEAL.opened_pair(flipped(SEAL.pair(10**12, 3), bit)) is None
    assert SEAL.opened_entry(flipped(SEAL.entry(ENTRY), bit)) is None


@given(st.binary())
def test_what_nobody_signed_does_not_open(junk: bytes) -> None:
    assert SEAL.opened_pair(junk) is None
    assert SEAL.opened_entry(junk) is None


@pytest.mark.parametrize("meta", [OTHER_SECRET, OTHER_INCARNATION], ids=["secret", "incarnation"])
def test_news_of_another_secret_or_incarnation_does_not_open(meta: Meta) -> None:
    assert SEAL.opened_pair(Seal(meta).pair(7, 3)) is None
    assert SEAL.opened_entry(Seal(meta).entry(ENTRY)) is None


def test_a_pair_is_not_taken_for_an_entry_nor_an_entry_for_a_pair() -> None:
    text, _, mac = SEAL.pair(7, 3).rpartition(b"|")
    assert SEAL.opened_entry(bytes.fromhex(mac.decode()) + text) is None
    body = SEAL.entry(ENTRY)
    assert SEAL.opened_pair(body[16:] + b"|" + body[:16].hex().encode()) is None


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 33])
async def test_a_registry_without_a_secret_is_refused_with_the_cure(
    secret: bytes, clock: ManualClock
) -> None:
    """An empty key would make of the signature what anybody can compute."""
    registry = Registry(MemoryRegistry(clock), clock)
    with pytest.raises(Misconfigured, match="fsck URL --rebuild") as refused:
        await registry.open(structs.replace(FOUNDING, secret=secret))
    assert "short" not in str(refused.value)


def test_the_secret_is_not_shown() -> None:
    meta = structs.replace(FOUNDING, secret=b"do-not-show-this-in-any-place---")
    for shown in (repr(meta), str(Reading(meta, 5)), f"{meta}", repr(list(meta.__rich_repr__()))):
        assert "do-not-show" not in shown
        assert "id_scheme" in shown
    assert "do-not-show" not in repr(vars(Seal).keys()) + repr(Seal(meta))


class Fleet:
    """A leader and a follower, between them a relay that others can write to."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.news = MemoryNews()
        self.store = MemoryRegistry(clock)
        self.leader, self.follower = (
            Registry(self.store, clock, self.news, Random(1)) for _ in range(2)
        )

    async def step(self, forge: Forge | None = None) -> None:
        await self.clock.advance(0.1)
        await self.leader.keep_ahead(leads=True)
        await self.leader.tell()
        if forge is not None and self.news.newest is not None:
            self.news.newest = forge(self.news.newest)
        await self.follower.keep_up(urgent=False)
        assert self.follower.view.horizon_ms <= self.leader.view.horizon_ms
        self.follower.check()


@pytest.fixture
async def fleet(clock: ManualClock) -> Fleet:
    made = Fleet(clock)
    await made.leader.open(FOUNDING)
    await made.follower.open(FOUNDING)
    await made.step()
    return made


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "heatsink"]


@pytest.mark.parametrize(
    ("forge", "warning"),
    [
        (ahead(3_600_000), relay.FORGED_PAIR),
        (ahead(400), relay.FORGED_PAIR),
        (later_version, relay.FORGED_PAIR),
        (signed_by(OTHER_SECRET), relay.FORGED_PAIR),
        (lambda _: b"junk", relay.FORGED_PAIR),
        (lambda _: b"", relay.FORGED_PAIR),
        (signed_by(OTHER_INCARNATION), relay.FOREIGN),
        (signed_by(FOUNDING, 3_600_000), relay.TOO_FAR),
    ],
    ids=[
        "an hour ahead",
        "400 ms ahead",
        "another version",
        "another secret",
        "junk",
        "empty",
        "another incarnation",
        "an hour ahead with the secret",
    ],
)
async def test_a_forged_pair_is_ignored_and_logged_once(
    fleet: Fleet, forge: Forge, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    for buckets in range(2, 40):
        await fleet.leader.publish([for_key("k", BUCKETS, buckets, "hot")], term=0)
        await fleet.step(forge)
    await fleet.follower.reach(
        int(fleet.clock.now_s() * 1000), deadline_s=fleet.clock.monotonic_s() + 1
    )
    truth = await fleet.store.layout("k")
    horizon_ms = fleet.follower.view.horizon_ms
    known = fleet.follower.view.layout("k").overlapping(None, horizon_ms - 1)
    assert known == truth.overlapping(None, horizon_ms - 1)
    assert len(known) > 30
    assert warnings(caplog) == [warning]


async def test_the_same_warning_comes_again_after_a_while(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    await fleet.step(ahead(400))
    await fleet.step(ahead(400))
    await fleet.clock.advance(relay.WARN_S)
    await fleet.step(ahead(400))
    assert warnings(caplog) == [relay.FORGED_PAIR] * 2


async def test_genuine_news_after_forged_news_is_heard(fleet: Fleet) -> None:
    """One forgery does not spoil what comes later: an hour ahead is not waited for."""
    await fleet.step(ahead(3_600_000))
    await fleet.step(signed_by(FOUNDING, 3_600_000))
    await fleet.step()
    assert fleet.follower.view.horizon_ms == fleet.leader.view.horizon_ms


async def test_a_flipped_byte_in_an_entry_is_filled_from_the_store(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "heatsink")
    for buckets in range(2, 30):
        await decide(fleet.leader, buckets)
        await fleet.leader.tell()
        version, sealed = max(fleet.news.log["i"].items())
        position = buckets * len(sealed) // 30
        fleet.news.log["i"][version] = flipped(sealed, 8 * position)
        await fleet.step()
        assert fleet.follower.view.layouts == fleet.leader.view.layouts
    assert warnings(caplog) == [relay.FORGED_ENTRY]


async def test_an_old_pair_that_comes_back_changes_nothing(fleet: Fleet) -> None:
    old: list[Any] = [fleet.news.newest]
    for buckets in range(2, 12):
        await decide(fleet.leader, buckets)
        await fleet.step()
        old.append(fleet.news.newest)
    heir = Registry(fleet.store, fleet.clock, fleet.news, Random(2))
    await heir.open(FOUNDING)
    for registry in (fleet.follower, heir):
        before = (registry.view.version, registry.view.horizon_ms, dict(registry.view.layouts))
        await fleet.clock.advance(2.0)
        for pair in [*old, *old[::-1]]:
            fleet.news.newest = pair
            await registry._hear()
            assert not registry.is_fresh(), "an old pair says nothing about the store of now"
        view = registry.view
        assert (view.version, view.horizon_ms, view.layouts) == before


async def test_a_closed_time_far_ahead_in_the_store_is_believed_once_the_store_is_asked(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    far_ms = fleet.leader.meta.closed_ms + 86_400_000
    await fleet.store.advance(far_ms)
    for _ in range(10):
        await fleet.step()
    assert fleet.follower.view.horizon_ms == far_ms
    assert warnings(caplog) == []


async def test_a_suspended_machine_is_no_reason_to_warn(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """Its monotonic clock stood still for an hour; then it asks the store and knows better."""
    follower = fleet.follower
    await fleet.clock.advance(10.0)
    follower.time._store_began_ms -= 3_600_000
    for _ in range(3):
        await fleet.step()
    assert follower.view.horizon_ms == fleet.leader.view.horizon_ms
    behind_ms = int(fleet.clock.now_s() * 1000) - follower.time.store_ms(fleet.clock.monotonic_s())
    assert behind_ms <= 1
    assert warnings(caplog) == []


async def test_forgers_do_not_make_a_fleet_ask_the_store_more_often_than_silence_does(
    fleet: Fleet,
) -> None:
    asked = 0
    meta = fleet.store.meta

    async def counted() -> Reading:
        nonlocal asked
        asked += 1
        return await meta()

    fleet.store.meta = counted  # type: ignore[method-assign]
    follower = fleet.follower
    follower._meta = structs.replace(follower.meta, servers=2_000)
    await fleet.store.beat(0, 2_000, 0)
    following = asyncio.ensure_future(follower.follow())
    for _ in range(600):
        fleet.news.newest = b"junk"
        await fleet.clock.advance(0.1)
    following.cancel()
    assert 2 <= asked <= 60 / (2_000 / relay.ASKS_S) * 2 + 1
