"""Records of a stream, decoded for consumers that go past Heatsink."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from heatsink.door.keys import physical
from heatsink.door.streams import application_key, decoded

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: "\x00" not in name)


@given(NAMES, st.none() | st.integers(0, 255))
def test_a_record_of_any_bucket_shows_the_applications_key(key: str, bucket: int | None) -> None:
    stored = {"room": {"S": physical(key, bucket)}, "at": {"S": "x"}}
    record: dict[str, Any] = {
        "eventName": "MODIFY",
        "dynamodb": {"Keys": stored, "NewImage": {**stored, "n": {"N": "1"}}, "SizeBytes": 7},
    }
    before = str(record)
    shown = decoded(record, partition_key="room")
    if application_key(key) == key:  # a key that ends as a bucket's name is reserved
        wanted = {"room": {"S": key}, "at": {"S": "x"}}
        assert shown["dynamodb"]["Keys"] == wanted
        assert shown["dynamodb"]["NewImage"] == {**wanted, "n": {"N": "1"}}
    assert shown["dynamodb"]["SizeBytes"] == 7
    assert str(record) == before


def test_records_of_other_shapes_pass() -> None:
    assert decoded({"eventName": "REMOVE"}, partition_key="room") == {"eventName": "REMOVE"}
    keys = {"dynamodb": {"Keys": {"id": {"N": "1"}}}}
    assert decoded(keys, partition_key="room") == keys
