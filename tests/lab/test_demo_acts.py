"""The acts of the demo, each played on virtual time, and what their verdicts make of failures."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from heatsink.errors import InvalidSetting
from heatsink.lab.demo.act import ActSnapshot, ActVerdict, Offer
from heatsink.lab.demo.acts import ACTS, NAMES, bulk, celebrity, find_act, likes, product, service
from heatsink.lab.demo.acts.bulk import BulkAct, BulkNow
from heatsink.lab.demo.acts.celebrity import CelebrityAct, CelebrityNow, PostNow
from heatsink.lab.demo.acts.likes import LikesAct, LikesNow
from heatsink.lab.demo.acts.product import ProductAct, ProductNow, ProductOutcome
from heatsink.lab.demo.acts.service import ServiceAct, ServiceNow
from heatsink.lab.demo.lanes import LaneMeter, Totals
from heatsink.lab.demo.traffic import TrafficPlan
from heatsink.testing import ManualClock

from .demo_world import play

DONE, SHORT = Offer("calls", due=100, made=100), Offer("calls", due=100, made=79)
SMALL = TrafficPlan(peak=400, limit=100)
BRIEF = TrafficPlan(peak=400, limit=1_000, brief=True)


class FewItems(TrafficPlan, frozen=True):
    """A tenth of a brief run's, ten times as dear."""

    @property
    def items(self) -> int:
        return BRIEF.items // 10


@pytest.fixture
def few_items(monkeypatch: pytest.MonkeyPatch) -> TrafficPlan:
    monkeypatch.setattr(bulk, "TOGETHER", bulk.TOGETHER // 10)
    return FewItems(brief=True)


def words(told: list[ActSnapshot]) -> str:
    return " ".join(now.says for now in told)  # type: ignore[attr-defined]


def marks(verdict: ActVerdict) -> list[bool | None]:
    return [finding.good for finding in verdict.findings]


# --- words


@pytest.mark.parametrize("act", ACTS, ids=NAMES)
def test_every_act_has_three_sentences_a_place_to_look_and_its_small_print(act: object) -> None:
    about = act.about(TrafficPlan())  # type: ignore[attr-defined]
    assert about.title
    assert len(about.sentences) == 3
    for text in (*about.sentences, about.small_print):
        assert text.endswith(".")
        assert "{" not in text
    assert about.look.startswith("Look at")
    assert all(sentence.count(". ") <= 1 for sentence in about.sentences)


@pytest.mark.parametrize(("text", "name"), [("1", "chat"), ("6", "service"), ("likes", "likes")])
def test_an_act_is_found_by_number_or_name(text: str, name: str) -> None:
    assert find_act(text).name == name


@pytest.mark.parametrize("text", ["0", "7", "chats", ""])
def test_an_act_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="act must be 1 to 6 or one of chat, likes"):
        find_act(text)


# --- likes


def test_heatsink_counts_every_like_and_the_plain_counter_falls_behind() -> None:
    verdict, told = play(LikesAct(), SMALL)
    last = cast("LikesNow", told[-1])
    assert verdict.outcome == "held"
    assert last.counted_heatsink == last.heatsink.totals.offered
    assert last.counted_plain == last.plain.totals.accepted
    assert last.counted_plain < 0.8 * last.heatsink.totals.offered
    counted = f"{last.counted_heatsink:,} and the plain counter {last.counted_plain:,}"
    assert f"Heatsink counted {counted}" in verdict.line
    shards = [now.heatsink.spread.buckets for now in cast("list[LikesNow]", told)]
    assert shards[0] == 1
    assert max(shards) >= 3
    assert "one row is enough for both" in words(told)
    assert "The plain row accepts 1" in words(told)  # what was measured, about 100


@pytest.mark.parametrize(
    ("accepted", "value"), [(99, 99), (100, 99), (100, 101)], ids=["refused", "lost", "doubled"]
)
def test_a_like_that_is_not_counted_once_is_called_a_failure(accepted: int, value: int) -> None:
    verdict = likes.judge(DONE, Totals(100, 90), Totals(100, accepted), 90, value)
    assert verdict.outcome == "not_held"
    assert marks(verdict) == [False, None]


def test_refused_likes_of_a_busy_machine_are_excused_but_wrong_numbers_are_not() -> None:
    refused = likes.judge(SHORT, Totals(79, 60), Totals(79, 70), 60, 70)
    wrong = likes.judge(SHORT, Totals(79, 60), Totals(79, 70), 60, 71)
    assert (refused.outcome, wrong.outcome) == ("too_busy", "not_held")


# --- service


def test_an_existing_service_loses_messages_without_heatsink_and_none_with_it() -> None:
    verdict, told = play(ServiceAct(), SMALL)
    last = cast("ServiceNow", told[-1])
    assert verdict.outcome == "held"
    assert last.heatsink.totals.accepted == last.heatsink.totals.offered
    assert last.plain.totals.dropped > 0.3 * last.plain.totals.offered
    assert f"stored {last.heatsink.totals.accepted:,} with Heatsink" in verdict.line
    buckets = [now.heatsink.spread.buckets for now in cast("list[ServiceNow]", told)]
    assert buckets[0] == 1
    assert max(buckets) >= 3
    assert "one partition is enough for both" in words(told)
    assert "the table accepts 100" in words(told)


def test_messages_that_are_missing_doubled_or_lost_are_called_a_failure() -> None:
    accepted = {b"a": b"a", b"b": b"b"}
    assert service.wrongs(accepted, [("a", "1"), ("b", "1"), ("not acknowledged", "1")]) == 0
    assert service.wrongs(accepted, [("a", "1")]) == 1
    assert service.wrongs(accepted, [("a", "1"), ("b", "1"), ("b", "1")]) == 1
    assert service.wrongs(accepted, [("a", "2"), ("b", "1")]) == 1
    wrong = service.judge(DONE, Totals(100, 60), Totals(100, 100), wrong=1)
    dropped = service.judge(DONE, Totals(100, 60), Totals(100, 99, dropped=1), wrong=0)
    assert [one.outcome for one in (wrong, dropped)] == ["not_held", "not_held"]
    assert marks(wrong) == [False, True, None]
    assert marks(dropped) == [True, False, None]


# --- product


def test_one_load_serves_many_views_and_the_plain_database_is_worn_out() -> None:
    verdict, told = play(ProductAct(), SMALL)
    peak = max(cast("list[ProductNow]", told), key=lambda now: now.heatsink.rates.offered_s)
    assert verdict.outcome == "held"
    assert marks(verdict) == [True, True, None]
    assert peak.heatsink.rates.offered_s > 300
    assert product.loads_s(peak.heatsink) <= 10
    assert product.loads_s(peak.plain) >= 90
    assert peak.plain.rates.throttled_s > 100
    assert cast("ProductNow", told[-1]).plain.totals.dropped > 500
    assert "with hs.reads, the database gets" in words(told)


@pytest.mark.parametrize(
    ("outcome", "dropped", "expected"),
    [
        (ProductOutcome(outdated=1), 0, [True, False, None]),
        (ProductOutcome(oldest_s=5.1), 0, [True, False, None]),
        (ProductOutcome(), 1, [False, True, None]),
    ],
    ids=["outdated", "too old", "refused"],
)
def test_a_page_that_is_wrong_or_missing_is_called_a_failure(
    outcome: ProductOutcome, dropped: int, expected: list[bool | None]
) -> None:
    meter = LaneMeter(ManualClock())
    meter.totals = Totals(100, 100 - dropped, 0, dropped)
    verdict = product.judge(DONE, meter, meter, outcome)
    assert marks(verdict) == expected
    assert verdict.outcome == "not_held"


# --- celebrity


def test_past_the_threshold_a_post_writes_no_home_and_every_fan_sees_it() -> None:
    verdict, told = play(CelebrityAct(), BRIEF)
    last = cast("CelebrityNow", told[-1])
    assert verdict.outcome == "held"
    assert marks(verdict) == [True, True, None]
    before = [post for post in last.posts if post.mode == "push"]
    after = [post for post in last.posts if post.mode == "pull"]
    assert len(before) > 5
    assert len(after) > 3
    assert all(post.writes for post in before)
    assert not any(post.writes for post in after)
    assert after[-1].always_writes > last.threshold
    assert "which is cheap" in words(told)
    assert "Grace is pulled" in words(told)


def test_a_home_that_misses_a_post_is_called_a_failure() -> None:
    posts = [PostNow(5, "push", 5, 5), PostNow(9, "pull", 0, 9)]
    assert celebrity.judge(DONE, posts, (40, 0), 8).outcome == "held"
    verdict = celebrity.judge(DONE, posts, (40, 1), 8)
    assert verdict.outcome == "not_held"
    assert marks(verdict) == [False, True, None]
    assert "2 posts took 5 home writes with the threshold, 14 if always pushed" in verdict.line


def test_a_post_that_is_pushed_past_the_threshold_is_explained() -> None:
    posts = [PostNow(8, "push", 9, 9), PostNow(8, "pull", 0, 9)]
    said = celebrity.judge(DONE, posts, (40, 0), 8).findings[1].text
    assert "After her follower number 8 she was pulled: 1 post, 0 home writes." in said
    assert "One post before that reached 9 homes: new followers came" in said


def test_an_author_who_is_never_pulled_fails_unless_too_few_followed() -> None:
    posts = [PostNow(5, "push", 5, 5)]
    assert celebrity.judge(DONE, posts, (5, 0), 8).outcome == "not_held"
    assert celebrity.judge(SHORT, posts, (5, 0), 8).outcome == "too_busy"


# --- bulk


def test_small_batches_do_not_wait_for_the_large_one_and_workers_follow_the_work(
    few_items: TrafficPlan,
) -> None:
    verdict, told = play(BulkAct(), few_items)
    looks = cast("list[BulkNow]", told)
    last = looks[-1]
    assert verdict.outcome == "held"
    assert last.done == last.items == few_items.items
    assert len(last.small) >= 2
    assert all(one.took_s is not None and one.ahead > 0 for one in last.small[:-1])
    slowest = max(one.took_s or 0.0 for one in last.small)
    done_at = next(now.second for now in looks if now.done == now.items)
    assert slowest < (done_at - last.small[0].second) / 2
    workers = [sum(now.workers) for now in looks]
    assert max(workers) > next(filter(None, workers))
    assert "to go" in words(told)
    assert "All 25,000 are done" in words(told)


def test_what_takes_too_long_is_called_off_and_said_so(
    few_items: TrafficPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "patience_s", lambda _: 5.0)
    verdict, told = play(BulkAct(), few_items)
    last = cast("BulkNow", told[-1])
    assert 0 < last.done < last.items
    assert verdict.outcome == "too_busy"
    told_all = " ".join(finding.text for finding in verdict.findings)
    assert f"{last.done:,} of {last.items:,} items in" in told_all
    assert f"the other {last.items - last.done:,} were cancelled" in told_all
    assert "more than" in told_all
    assert (
        last.says == f"{last.done:,} are done; the other {last.items - last.done:,} were cancelled."
    )


# --- the meter


def test_a_meter_counts_by_partition_what_was_taken() -> None:
    meter = LaneMeter(ManualClock())
    meter.take("a", 3)
    meter.take("a")
    assert meter.taken == Counter({"a": 4})
