from __future__ import annotations

from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import InvalidId, InvalidSetting, Unavailable
from heatsink.primitives.ids import (
    TIME_MS_MAX,
    TWITTER_EPOCH_MS,
    IdScheme,
    Minter,
    Snowflake,
    SteppingMinter,
    Ulid,
    Uuid7,
    minter_of,
)

NOW_MS = 1_800_000_000_000
times = st.integers(0, TIME_MS_MAX)


@given(times, st.integers(0, 2**42 - 1), st.integers(0, 2**32 - 1))
def test_a_uuid7_is_one_and_carries_its_time(time_ms: int, counter: int, tail: int) -> None:
    raw = Uuid7().from_parts(time_ms, counter, tail)
    value = Uuid7().value(raw)
    assert value.version == 7
    assert value.variant == "specified in RFC 4122"
    assert Uuid7().raw(value) == raw
    assert Uuid7().time_ms(raw) == time_ms


def test_a_uuid7_from_the_standard_is_read() -> None:
    example = UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")  # RFC 9562, appendix A.6
    assert Uuid7().time_ms(Uuid7().raw(example)) == 0x017F22E279B0


def test_a_ulid_from_its_specification_is_read() -> None:
    raw = Ulid().raw("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert Ulid().time_ms(raw) == 1_469_922_850_259
    assert Ulid().value(raw) == "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert Ulid().raw("01arz3ndektsv4rrffq69g5fav") == raw


def test_a_tweet_id_is_read() -> None:
    raw = Snowflake().raw(1541815603606036480)
    assert Snowflake().time_ms(raw) == 1_656_432_460_105
    assert Snowflake(epoch_ms=0).time_ms(raw) == 1_656_432_460_105 - TWITTER_EPOCH_MS


@given(times, st.integers(0, 2**42 - 1), st.integers(0, 2**32 - 1))
def test_a_ulid_survives_the_round_trip(time_ms: int, counter: int, tail: int) -> None:
    raw = Ulid().from_parts(time_ms, counter, tail)
    assert Ulid().raw(Ulid().value(raw)) == raw
    assert Ulid().time_ms(raw) == time_ms


@given(st.integers(0, 2**63 - 1))
def test_a_snowflake_survives_the_round_trip(value: int) -> None:
    assert Snowflake().value(Snowflake().raw(value)) == value


@pytest.mark.parametrize("scheme", [Uuid7(), Ulid()])
@given(pairs=st.lists(st.tuples(times, st.integers(0, 2**42 - 1)), min_size=2, max_size=2))
def test_raw_ids_sort_by_time_then_counter(scheme: IdScheme, pairs: list[tuple[int, int]]) -> None:
    raws = [scheme.from_parts(time_ms, counter, 5) for time_ms, counter in pairs]
    assert (raws[0] < raws[1]) == (pairs[0] < pairs[1])


@pytest.mark.parametrize("scheme", [Uuid7(), Ulid(), Snowflake(0)])
@given(time_ms=st.integers(1, 2**40))
def test_the_first_raw_of_a_time_bounds_it(scheme: IdScheme, time_ms: int) -> None:
    assert scheme.time_ms(scheme.first_raw(time_ms)) == time_ms
    below = int.from_bytes(scheme.first_raw(time_ms), "big") - 1
    assert scheme.time_ms(below.to_bytes(len(scheme.first_raw(0)), "big")) == time_ms - 1


@pytest.mark.parametrize(
    ("scheme", "value", "expected"),
    [
        (Uuid7(), uuid4(), "version 4; expected version 7"),
        (Uuid7(), "017F22E2-79B0-7CC3-98C4-DC0C0C07398F", "uuid.UUID"),
        (Uuid7(), 5, "uuid.UUID"),
        (Uuid7(), UUID(int=0), "expected version 7"),
        (Ulid(), "01ARZ3NDEKTSV4RRFFQ69G5FA", "26 characters"),
        (Ulid(), "81ARZ3NDEKTSV4RRFFQ69G5FAV", "26 characters"),
        (Ulid(), "01ARZ3NDEKTSV4RRFFQ69G5FAU", "alphabet"),
        (Ulid(), UUID(int=0), "ULID"),
        (Snowflake(), -1, "2**63"),
        (Snowflake(), 2**63, "2**63"),
        (Snowflake(), True, "Snowflake"),
        (Snowflake(), "1541815603606036480", "Snowflake"),
    ],
)
def test_a_foreign_id_is_refused_with_what_was_expected(
    scheme: IdScheme, value: object, expected: str
) -> None:
    with pytest.raises(InvalidId, match=expected.replace("*", r"\*")):
        scheme.raw(value)


def test_a_snowflake_is_never_minted() -> None:
    with pytest.raises(InvalidId, match="id is missing: this deployment uses Snowflake ids"):
        Minter(Snowflake(), Random(1)).mint(NOW_MS, NOW_MS + 1_000)


def test_a_snowflake_epoch_must_be_a_time() -> None:
    with pytest.raises(InvalidSetting, match="epoch_ms"):
        Snowflake(epoch_ms=-5)


@pytest.mark.parametrize("make", [Minter, SteppingMinter])
@given(
    clock=st.lists(st.integers(NOW_MS - 10_000, NOW_MS + 10_000), max_size=60), seed=st.integers()
)
def test_minted_ids_only_grow_and_never_reach_the_horizon(
    make: type[Minter], clock: list[int], seed: int
) -> None:
    """Whatever the clock does; the horizon only grows."""
    minter = make(Uuid7(), Random(seed))
    horizon_ms, last = NOW_MS, b""
    for step, now_ms in enumerate(clock):
        horizon_ms += step % 3
        raw, time_ms = minter.mint(now_ms, horizon_ms)
        assert raw > last
        assert time_ms == Uuid7().time_ms(raw) < horizon_ms
        last = raw


@pytest.mark.parametrize("make", [Minter, SteppingMinter])
def test_a_hundred_thousand_ids_fit_into_one_millisecond(make: type[Minter]) -> None:
    minter = make(Uuid7(), Random(1))
    ids = [minter.mint(NOW_MS, NOW_MS + 1)[0] for _ in range(100_000)]
    assert ids == sorted(set(ids))
    assert {Uuid7().time_ms(raw) for raw in ids} == {NOW_MS}


class LargestBits(Random):
    def getrandbits(self, k: int) -> int:
        return (1 << k) - 1


@pytest.mark.parametrize("scheme", [Uuid7(), Ulid()])
def test_a_full_millisecond_goes_on_in_the_next_or_says_so(scheme: IdScheme) -> None:
    """Every random step is the largest here; all but two of those that fit are left out."""
    minter, step = minter_of(scheme, LargestBits()), 1 << 32
    first, _ = minter.mint(NOW_MS, NOW_MS + 2)
    assert minter._end - int.from_bytes(first, "big") >= ((1 << 29) - 1) * step
    minter._last = minter._end - 2 * step
    last, time_ms = minter.mint(NOW_MS, NOW_MS + 2)
    assert time_ms == NOW_MS == scheme.time_ms(last)
    assert scheme.raw(scheme.value(last)) == last
    after = [minter.mint(NOW_MS, NOW_MS + 2) for _ in range(3)]
    assert last < after[0][0] < after[1][0] < after[2][0]
    assert {time_ms for _, time_ms in after} == {NOW_MS + 1}
    minter._last = minter._end - step
    for _ in range(2):
        with pytest.raises(Unavailable, match="ids of this millisecond"):
            minter.mint(NOW_MS, NOW_MS + 2)


class Short(Uuid7):
    """A scheme of somebody's own, of 12 bytes."""

    def from_parts(self, time_ms: int, counter: int, tail: int) -> bytes:
        return time_ms.to_bytes(6, "big") + ((counter ^ tail) % 2**32).to_bytes(4, "big") + b"ok"


def test_a_scheme_of_somebodys_own_makes_every_id() -> None:
    minter = minter_of(Short(), Random(1))
    for step in range(1_000):
        raw, time_ms = minter.mint(NOW_MS + step // 10, NOW_MS + 1_000)
        assert len(raw) == 12
        assert raw.endswith(b"ok")
        assert time_ms == NOW_MS + step // 10 == Short().time_ms(raw)


@pytest.mark.parametrize("make", [Minter, SteppingMinter])
def test_two_processes_in_one_millisecond_do_not_collide(make: type[Minter]) -> None:
    one, other = make(Uuid7(), Random(1)), make(Uuid7(), Random(2))
    ids = {m.mint(NOW_MS, NOW_MS + 1)[0] for m in (one, other) for _ in range(10_000)}
    assert len(ids) == 20_000


@pytest.mark.parametrize("scheme", [Uuid7(), Ulid(), Snowflake()])
def test_an_id_is_read_from_its_text(scheme: IdScheme) -> None:
    value = scheme.value(scheme.first_raw(1_700_000_000_000))
    if isinstance(scheme, Uuid7):
        value = scheme.value(scheme.from_parts(1_700_000_000_000, 5, 6))
    assert scheme.raw(scheme.from_text(str(value))) == scheme.raw(value)
    for wrong in ("", "x", "-1", "٣", "9" * 5_000, "🔥", "\0", "1.5"):
        with pytest.raises(InvalidId):
            scheme.raw(scheme.from_text(wrong))
