"""A declaration that does not fit the table is refused, with the reason."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.door.declaration import (
    SpreadTable,
    by_time,
    check_sample,
    described,
    fixed,
    unspread,
)
from heatsink.door.protocol import Body
from heatsink.door.times import TimeOf, after, iso_text, millis
from heatsink.errors import InvalidSetting

from .world import DEFINITION, TABLE, declared


def item(sort: str, key: str = "room") -> Body:
    return {"pk": {"S": key}, "sk": {"S": sort}}


def day_first(text: Any) -> int:
    """A natural mistake: 17-11-2026 does not sort by time."""
    return int(datetime.strptime(f"{text}+0000", "%d-%m-%Y%z").timestamp() * 1000)


def test_times_that_do_not_grow_with_the_sort_keys_are_refused() -> None:
    rules = [by_time("MSG#", day_first)]
    table = SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=rules)
    items = [item(f"MSG#{day:02}-{month:02}-2026") for day in (1, 17) for month in (10, 11)]
    with pytest.raises(InvalidSetting, match="do not grow") as refused:
        check_sample(table, items)
    assert refused.value.field == "rules"
    check_sample(table, items[:2])


@pytest.mark.parametrize(
    ("time_of", "sort_type", "words"),
    [
        (millis, "S", "millis reads sort keys that are a number, but those of table chat are text"),
        (iso_text, "N", "iso_text reads sort keys that are text"),
        (after("MSG#", millis), "S", r"after\('MSG#', millis\) reads sort keys that are a number"),
    ],
)
def test_a_reader_of_times_that_cannot_read_the_sort_key_s_type_is_refused(
    time_of: TimeOf, sort_type: str, words: str
) -> None:
    rules = [by_time("", time_of)]
    with pytest.raises(InvalidSetting, match=words) as refused:
        SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=rules, sort_type=sort_type)
    assert refused.value.field == "rules"
    own = [by_time("", day_first)]
    SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=own, sort_type=sort_type)


def test_a_rule_that_reads_no_time_is_refused() -> None:
    rules = [by_time("", iso_text)]
    table = SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=rules)
    with pytest.raises(InvalidSetting, match="none of 12 sort keys"):
        check_sample(table, [item(f"{number:08}") for number in range(12)])
    check_sample(table, [item("META"), item("2026-11-17T12:00:00Z")])


def test_few_sort_keys_without_a_time_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    rules = [by_time("", iso_text)]
    table = SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=rules)
    check_sample(table, [item("2026-11-17 12:00:00")])
    assert "the only sort key looked at in table" in caplog.text


def test_mixed_collections_and_keys_pass() -> None:
    sorts = ["META", "MSG#2026-11-17T12:00:00Z", "LOG#2020-01-01T00:00:00Z", "T#x", "MSG#draft"]
    check_sample(declared(), [item(sort, key) for key in "ab" for sort in sorts])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"AttributeDefinitions": [("pk", "N"), ("sk", "S")]}, "only a text key can contain"),
        ({"AttributeDefinitions": [("pk", "B"), ("sk", "S")]}, "only a text key can contain"),
        ({"AttributeDefinitions": [("pk", "S"), ("sk", "N")]}, "sort_type='N'"),
        ({"KeySchema": [("pk", "HASH")]}, "has no sort key"),
        ({"KeySchema": [("sk", "HASH"), ("pk", "RANGE")]}, "partition_key is 'pk', but table"),
    ],
)
def test_a_key_schema_that_does_not_fit_is_refused(change: Body, words: str) -> None:
    names = {"AttributeDefinitions": "AttributeType", "KeySchema": "KeyType"}
    description = {"KeySchema": DEFINITION["KeySchema"], "AttributeDefinitions": []}
    description["AttributeDefinitions"] = DEFINITION["AttributeDefinitions"]
    for field, values in change.items():
        description[field] = [{"AttributeName": n, names[field]: kind} for n, kind in values]
    with pytest.raises(InvalidSetting, match=words):
        described(declared(), description)


def test_an_index_that_is_sorted_by_the_partition_key_must_be_unused() -> None:
    inverted = {
        "IndexName": "inverted",
        "KeySchema": [
            {"AttributeName": "sk", "KeyType": "HASH"},
            {"AttributeName": "pk", "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "ALL"},
    }
    description = {**DEFINITION, "GlobalSecondaryIndexes": [inverted]}
    with pytest.raises(InvalidSetting, match="unused_indexes"):
        described(declared(), description)
    found = described(declared(unused_indexes=frozenset({"inverted"})), description)
    assert set(found.indexes) == {"inverted", "by-score", "by-score-few"}


def test_numbers_of_buckets_have_limits() -> None:
    for buckets in (1, 257):
        with pytest.raises(InvalidSetting, match="buckets"):
            fixed("T#", buckets=buckets)


@given(st.text(max_size=12), st.lists(st.text(max_size=4), unique=True, max_size=5))
def test_the_longest_prefix_decides(sort: str, prefixes: list[str]) -> None:
    rules = [unspread(prefix) for prefix in prefixes]
    table = SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=rules)
    fitting = [prefix for prefix in prefixes if sort.startswith(prefix)]
    assert table.rule_of(sort).prefix == max(fitting, key=len, default="")


def test_a_misspelt_setting_is_named() -> None:
    given: dict[str, Any] = {"partition_key": "pk", "sort_key": "sk", "rules": []}
    with pytest.raises(InvalidSetting, match="did you mean 'append_only'"):
        SpreadTable(TABLE, **given, appendonly=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="rules must be a list of by_time"):
        SpreadTable(TABLE, **{**given, "rules": ["MSG#"]})
    with pytest.raises(InvalidSetting, match="rules must be a list: write"):
        SpreadTable(TABLE, **{**given, "rules": unspread("MSG#")})
    wrong = {"append_only": "no", "ahead_s": "2", "unused_indexes": "inverted"}
    for field, value in wrong.items():
        with pytest.raises(InvalidSetting, match=f"^{field} must be") as refused:
            SpreadTable(TABLE, **{**given, field: value})
        assert refused.value.field == field


def test_a_prefix_that_fits_no_item_of_the_table_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = SpreadTable(TABLE, partition_key="pk", sort_key="sk", rules=[by_time("MGS#", iso_text)])
    check_sample(table, [item("META"), item("MEMBER#ada"), item("N#0017")])
    assert not caplog.records
    check_sample(table, [item("META"), item("MSG#2026-11-17T12:00:00Z")])
    assert "declared prefix 'MGS#', but 'MSG#2026" in caplog.text
    caplog.clear()
    check_sample(table, [item("MGS#2026-11-17T12:00:00Z"), item("LOG#2026-11-17T12:00:00Z")])
    assert not caplog.records
