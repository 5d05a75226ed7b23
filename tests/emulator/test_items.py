"""The sorted items of a table, against a plain dictionary."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.rows import Rows, StoredItem, token_of
from heatsink.stores.dynamodb.wire.expressions.key_conditions import EVERYTHING, Bounds
from heatsink.stores.dynamodb.wire.keys import Key

hashes = st.sampled_from("pqr")
sorts = st.text("ab", min_size=1, max_size=3)
keys = st.builds(Key, hashes, sorts)
changes = st.lists(st.tuples(keys, st.booleans()), max_size=40)


def made_by(steps: list[tuple[Key, bool]]) -> tuple[Rows, dict[Key, StoredItem]]:
    items, plain = Rows(), {}
    for number, (key, put) in enumerate(steps):
        row = StoredItem({"n": {"N": str(number)}, "pk": {"S": str(key.hash)}}, number)
        if put:
            items.put(key, row)
            plain[key] = row
        else:
            items.remove(key)
            plain.pop(key, None)
    return items, plain


@given(changes, hashes, st.none() | sorts, st.none() | sorts, st.booleans(), st.none() | sorts)
def test_a_query_is_a_sorted_filter(
    steps: Any, hash_: str, low: Any, high: Any, forward: bool, after: Any
) -> None:
    items, plain = made_by(steps)
    wanted = sorted(
        key
        for key in plain
        if key.hash == hash_
        and (low is None or str(key.sort) >= low)
        and (high is None or str(key.sort) < high)
        and (after is None or (str(key.sort) > after if forward else str(key.sort) < after))
    )
    bounds = Bounds(low=low, high=high, high_included=False)
    start = None if after is None else Key(hash_, after)
    found = list(items.query(hash_, bounds, forward, start))
    assert found == [plain[key] for key in (wanted if forward else wanted[::-1])]


@given(changes, hashes, sorts)
def test_a_prefix_is_a_range(steps: Any, hash_: str, prefix: str) -> None:
    items, plain = made_by(steps)
    wanted = sorted(k for k in plain if k.hash == hash_ and str(k.sort).startswith(prefix))
    assert list(items.query(hash_, Bounds(prefix=prefix))) == [plain[key] for key in wanted]


@given(changes, st.integers(1, 4))
def test_segments_hold_everything_once(steps: Any, count: int) -> None:
    items, plain = made_by(steps)
    edges = [number * SPACE // count for number in range(count + 1)]
    found = [row for n in range(count) for row in items.scan(edges[n], edges[n + 1])]
    assert sorted(found, key=str) == sorted(plain.values(), key=str)
    assert items.size() == (len(plain), sum(row.size for row in plain.values()))


@given(changes)
def test_a_scan_goes_on_after_any_key(steps: Any) -> None:
    items, plain = made_by(steps)
    rows = list(items.scan())
    places = {id(row): key for key, row in plain.items()}
    for position, row in enumerate(rows):
        key = next(key for key, known in plain.items() if known == row)
        assert list(items.scan(after=key)) == rows[position + 1 :]
    assert len(places) == len(rows)


def test_a_table_without_sort_keys_has_one_row_per_key() -> None:
    items = Rows()
    items.put(Key("a", None), StoredItem({}, 1))
    items.put(Key("a", None), StoredItem({}, 2))
    assert [row.size for row in items.query("a", EVERYTHING)] == [2]
    items.remove(Key("a", None))
    assert list(items.scan()) == []


def test_keys_spread_evenly_over_the_hashes() -> None:
    counts = [0] * 4
    for number in range(4_000):
        counts[token_of(f"key{number}") * 4 // SPACE] += 1
    assert min(counts) > 900
