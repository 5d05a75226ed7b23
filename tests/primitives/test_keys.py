from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.errors import InvalidKey
from heatsink.primitives.keys import KEY_BYTES_MAX, check_key, key_of, partition_of

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
tricky = st.text("#%0123aé🔥", min_size=1, max_size=8)
buckets = st.none() | st.integers(0, 63)


@given(tricky | text, buckets)
def test_a_partition_names_one_key_and_one_bucket(key: str, bucket: int | None) -> None:
    assert key_of(partition_of(key, bucket)) == (key, bucket)


@given(tricky, buckets, tricky, buckets)
def test_no_key_can_produce_another_keys_partition(
    key: str, bucket: int | None, other: str, other_bucket: int | None
) -> None:
    same = (key, bucket) == (other, other_bucket)
    assert (partition_of(key, bucket) == partition_of(other, other_bucket)) == same


def test_ordinary_keys_keep_their_names() -> None:
    assert partition_of("conv_abc123", None) == "conv_abc123"
    assert partition_of("conv_abc123", 3) == "conv_abc123#3"
    assert partition_of("conv#3", None) == "conv%233"


@pytest.mark.parametrize("key", ["a", " ", "a b", "🔥", "#", "%25", "x" * KEY_BYTES_MAX])
def test_unusual_but_right_keys_pass(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("", "empty"),
        (None, "must be a str, not NoneType"),
        (b"bytes", "must be a str, not bytes"),
        (7, "must be a str, not int"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("x" * (KEY_BYTES_MAX + 1), "at most"),
        ("é" * 600, "at most"),
        ("#" * 400, "once escaped"),
        ("x" * 10_000_000, "10,000,000 characters"),
    ],
)
def test_a_bad_key_is_refused_by_name(key: object, complaint: str) -> None:
    with pytest.raises(InvalidKey, match=complaint):
        check_key(key)
