"""Names of buckets that cannot collide, and numbers that have one place."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from heatsink.door.keys import TAG, TAGGED, comparable, hashed_bytes, physical

BUCKETS = st.none() | st.integers(0, 20)
KEYS = st.lists(st.sampled_from(["a", "1", TAG, "\n"]), min_size=1, max_size=4).map("".join)


@given(KEYS, BUCKETS, KEYS, BUCKETS)
def test_no_key_takes_the_name_of_another_keys_bucket(
    one: str, bucket: int | None, other: str, other_bucket: int | None
) -> None:
    if TAGGED.search(one) or TAGGED.search(other):
        return
    same = physical(one, bucket) == physical(other, other_bucket)
    assert same == ((one, bucket) == (other, other_bucket))


@given(st.integers(0, 10**38 - 1), st.integers(0, 5))
def test_a_number_has_one_place_however_it_is_written(number: int, zeros: int) -> None:
    longer = Decimal(f"{number}.{'0' * zeros}") if zeros else Decimal(number)
    assert hashed_bytes(comparable(number)) == hashed_bytes(longer)
    if number:
        assert hashed_bytes(comparable(number)) != hashed_bytes(comparable(number - 1))
