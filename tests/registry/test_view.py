from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import (
    BUCKETS,
    PIN,
    Decision,
    LogEntry,
    Reasons,
    Snapshot,
    SpreadKeys,
    View,
    for_key,
)
from heatsink.registry.layouts import COLD, Layout


def entry(version: int, key: str = "k", buckets: int = 2) -> LogEntry:
    decision = for_key(key, BUCKETS, buckets, "hot")
    return LogEntry(version, version * 10, version * 10, (decision,))


def test_a_view_applies_the_log_in_order() -> None:
    view = View()
    assert view.apply(entry(1))
    assert view.apply(entry(2, buckets=5))
    assert view.layout("k") == Layout.of([(10, 2), (20, 5)])
    assert view.layout("other") is COLD
    assert view.reasons["k"].value == 5


def test_a_gap_is_refused_and_a_repeat_passed_over() -> None:
    view = View()
    view.apply(entry(1))
    assert not view.apply(entry(3))
    assert view.apply(entry(1))
    assert view.version == 1
    assert view.layout("k") == Layout.of([(10, 2)])


def test_the_horizon_moves_only_once_the_log_is_applied() -> None:
    view = View()
    view.adopt(500, version=1)
    assert view.horizon_ms == 0
    view.apply(entry(1))
    view.adopt(500, version=1)
    assert view.horizon_ms == 500
    view.adopt(400, version=1)
    assert view.horizon_ms == 500


def test_an_older_snapshot_changes_nothing() -> None:
    view = View()
    view.apply(entry(1))
    view.load(Snapshot(1, {}, {}, {}))
    assert view.layout("k") != COLD


def test_a_snapshot_taken_while_the_log_grew_may_hold_epochs_early() -> None:
    view = View()
    early = Layout.of([(10, 2), (20, 5)])
    view.load(Snapshot(1, {"k": early}, {}, {"k": for_key("k", BUCKETS, 5, "hot")}))
    assert view.apply(entry(2, buckets=5))
    assert view.layout("k") == early
    assert view.apply(entry(3, buckets=1))
    assert view.layout("k") == early.then(30, 1)


def test_a_pin_stands_until_it_is_taken_back() -> None:
    view = View()
    view.apply(LogEntry(1, 0, 0, (for_key("k", PIN, 4, "launch"),)))
    assert view.pins["k"].value == 4
    view.apply(LogEntry(2, 0, 0, (for_key("k", PIN, None, "over"),)))
    assert view.pins == {}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=20), st.data())
def test_a_snapshot_and_the_rest_of_the_log_equal_the_whole_log(
    changes: list[tuple[str, int]], data: st.DataObject
) -> None:
    log = [entry(n, key, buckets) for n, (key, buckets) in enumerate(changes, start=1)]
    whole, early, late = View(), View(), View()
    cut = data.draw(st.integers(0, len(log)))
    for each in log:
        whole.apply(each)
    for each in log[:cut]:
        early.apply(each)
    late.load(Snapshot(early.version, early.layouts, early.pins, early.reasons))
    assert all(late.apply(each) for each in log)
    assert (late.layouts, late.version) == (whole.layouts, whole.version)


def test_below_a_keys_last_epoch_all_is_known_also_past_the_horizon() -> None:
    view = View()
    view.apply(entry(1))
    view.adopt(5, 1)
    assert [view.knows("k", time_ms) for time_ms in (4, 5, 9, 10)] == [True, True, True, False]
    assert [view.knows("other", time_ms) for time_ms in (4, 5)] == [True, False]


def test_a_decision_is_printed_in_words() -> None:
    assert for_key("k", BUCKETS, 5, "hot").words == "5 buckets"
    assert for_key("k", BUCKETS, 1, "calm").words == "1 bucket"
    assert for_key("k", PIN, 4, "launch").words == "pinned to 4 buckets"
    assert for_key("k", PIN, None, "over").words == "unpinned"
    redis = Subject(Kind.REDIS, "queue:6379")
    assert Decision(redis, "own_redis", 8, "slow").words == "should share its partitions"
    assert Decision(redis, "own_redis", None, "room").words == "needs no other server"
    author = Subject(Kind.AUTHOR, "grace")
    assert Decision(author, BUCKETS, 2, "many").words == "pulled"
    assert Decision(author, PIN, 1, "few").words == "pushed"
    assert Decision(Subject(Kind.WORKERS, "3"), PIN, 1, "slow").words == "pinned to 1 worker"
    assert str(entry(7)) == "version 7: k: 2 buckets (hot)"


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        (Kind.ADOPTED, "orders/1700000000000", 1, "table orders: adoption recorded"),
        (Kind.DECLARED, "orders", 1, "table orders: declaration recorded"),
        (
            Kind.SPREAD,
            "a/x",
            1,
            "spreading of index a/x: progress recorded",
        ),
        (
            Kind.SWEPT,
            "a/x/new",
            1,
            "sweep of index a/x/new: result recorded",
        ),
        (Kind.WORKERS, "3", 8, "workers of partition 3: pinned to 8 workers"),
        (Kind.SCHEDULE, "nightly", 2, "schedule nightly: set"),
        (Kind.STARTED, "nightly", 1, "schedule nightly: start decided"),
    ],
)
def test_a_pin_is_printed_without_internal_names(
    kind: Kind, name: str, value: int, words: str
) -> None:
    decision = Decision(Subject(kind, name), PIN, value, "why")
    assert str(LogEntry(1, 0, 0, (decision,))) == f"version 1: {words} (why)"


def test_the_dry_run_of_a_table_is_printed_as_such() -> None:
    trial = Decision(Subject(Kind.TRIAL, "orders/c-7"), BUCKETS, 4, "hot")
    said = str(LogEntry(1, 0, 0, (trial,)))
    assert said == "version 1: dry run of table orders/c-7: 4 buckets (hot)"


def decided(key: str, buckets: int = 2) -> Decision:
    return for_key(key, BUCKETS, buckets, "hot")


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(2, 9)),
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(2, 9) | st.none())),
)
def test_reasons_are_a_mapping_whatever_is_stored_and_changed(
    stored: dict[str, int], changes: list[tuple[str, int | None]]
) -> None:
    reasons = Reasons(stored, lambda buckets: decided("k", buckets))
    plain = {key: decided("k", buckets) for key, buckets in stored.items()}
    for key, buckets in changes:
        if buckets is not None:
            reasons[key] = plain[key] = decided("k", buckets)
        elif key in plain:
            del reasons[key], plain[key]
    assert dict(reasons) == plain
    assert len(reasons) == len(plain)
    assert [reasons.get(key) for key in "abcd"] == [plain.get(key) for key in "abcd"]


def test_reasons_are_decoded_when_they_are_asked_for() -> None:
    asked: list[str] = []

    def decode(text: str) -> Decision:
        asked.append(text)
        return decided(text)

    reasons = Reasons({"a": "a", "b": "b"}, decode)
    assert (len(reasons), asked) == (2, [])
    assert reasons["b"].key == reasons["b"].key == "b"
    assert asked == ["b"]


subjects = st.sampled_from(["a", "b", "\0table:t", "\0author:x"])


@given(st.lists(st.tuples(subjects, st.integers(1, 4)), max_size=9))
def test_a_view_knows_its_spread_keys_as_a_count_finds_them(
    changes: list[tuple[str, int]],
) -> None:
    view = View()
    for version, (key, buckets) in enumerate(changes, start=1):
        view.apply(entry(version, key, buckets))
    counted = SpreadKeys(view.layouts)
    assert (set(view.spread.keys), view.spread.extra) == (set(counted.keys), counted.extra)
    loaded = View()
    loaded.load(Snapshot(99, view.layouts, {}, {}))
    assert (loaded.spread.keys, loaded.spread.extra) == (counted.keys, counted.extra)
