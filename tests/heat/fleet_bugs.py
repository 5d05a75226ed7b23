"""Bugs that somebody might write into the detection of hot keys. Random fleets must find each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec

from heatsink.coordinator.keys import Watchlist
from heatsink.heat import count
from heatsink.heat.count import TopKeys
from heatsink.heat.fleet import Aggregator, _Account
from heatsink.heat.heat import Heat
from heatsink.spread.policy import BucketPolicy
from tests.planted import Bugs

BUGS = bug = Bugs()
FAULTY_BUGS = faulty_bug = Bugs()


@bug
def a_biased_sample() -> Iterator[None]:
    """A sampled key is reported with the writes that were hit, not with what they stand for."""
    sampled = count._sampled

    def as_hit(sample: list[float], tau: int) -> Heat:
        return sampled([each / tau for each in sample], tau)

    with patch.object(count, "_sampled", as_hit):
        yield


@bug
def sampling_after_the_bounded_table() -> Iterator[None]:
    """Only keys that the table still holds at the end of the window are sampled."""
    listed = TopKeys.listed

    def of_the_table(
        self: TopKeys, watched: Mapping[int, int], rng: Random, elapsed_s: float = 0.0
    ) -> dict[str, Heat]:
        top = sorted(self.entries, key=lambda key: -count.cost_at_most(self.entries[key]))
        kept = set(top[: self._capacity])
        self.samples = {key: each for key, each in self.samples.items() if key in kept}
        return listed(self, watched, rng, elapsed_s)

    with patch.object(TopKeys, "listed", of_the_table):
        yield


@bug
def a_floor_instead_of_samples() -> Iterator[None]:
    """A server reports only keys that are hot on it, as it was before."""

    def floored(self: TopKeys, *_: Any) -> dict[str, Heat]:
        entries = self.entries.items()
        return {key: count.heat_of(each) for key, each in entries if each[count.UNITS] >= self.tau}

    with patch.object(TopKeys, "listed", floored):
        yield


@bug
def a_feedback_that_never_ends() -> Iterator[None]:
    with patch.object(Watchlist, "_let_go", lambda *_: None):
        yield


@bug
def an_old_report_that_goes_on_counting() -> Iterator[None]:
    """A new report is added, and the one before it is not subtracted."""
    with patch.object(Aggregator, "_subtract", lambda *_: None):
        yield


@bug
def an_amendment_that_adds_instead_of_replacing() -> Iterator[None]:
    amend = Aggregator._amend

    def add(self: Aggregator, report: Any, account: Any) -> bool:
        known, account.keys = account.keys, {}
        done = amend(self, report, account)
        account.keys = known | account.keys
        return done

    with patch.object(Aggregator, "_amend", add):
        yield


@bug
def buckets_from_a_rough_estimate() -> Iterator[None]:
    """No second, precise window is waited for, however few samples there are."""
    with patch.object(BucketPolicy, "_is_sure", lambda *_: True):
        yield


@bug
def a_watched_key_that_the_table_evicts() -> Iterator[None]:
    """So it is never counted precisely where other keys are more frequent."""
    init = TopKeys.__init__

    def unwatched(self: TopKeys, *settings: Any) -> None:
        init(self, *settings[:4])

    with patch.object(TopKeys, "__init__", unwatched):
        yield


@bug
def a_part_of_a_window_taken_for_all_of_it() -> Iterator[None]:
    """A key that is watched from mid-window on is reported with its count since then."""
    since_watched = TopKeys._since_watched

    def unscaled(self: TopKeys, key: str, entry: list[int], elapsed_s: float) -> Heat | None:
        heat = since_watched(self, key, entry, elapsed_s)
        return count.scaled(heat, 1 / max(heat.tau, 1), 0) if heat else None

    with patch.object(TopKeys, "_since_watched", unscaled):
        yield


@bug
def a_notice_that_always_waits() -> Iterator[None]:
    """In a large fleet, a key that needs buckets now is not watched before the next notice."""
    with patch.object(Watchlist, "urgent", lambda *_: False):
        yield


@bug
def a_tau_that_is_not_reported() -> Iterator[None]:
    """The leader takes samples for exact counts."""
    sampled = count._sampled

    def as_exact(sample: list[float], tau: int) -> Heat:
        return msgspec.structs.replace(sampled(sample, tau), tau=0)

    with patch.object(count, "_sampled", as_exact):
        yield


@faulty_bug
def a_repeated_report_that_counts_again() -> Iterator[None]:
    take_final = Aggregator._take_final

    def again(self: Aggregator, report: Any, account: Any, now_s: float) -> None:
        if report.window <= account.final:
            double = {key: count.scaled(heat, 2, 0) for key, heat in report.keys.items()}
            report = msgspec.structs.replace(report, keys=double)
        take_final(self, report, account, now_s)

    with (
        patch.object(_Account, "accepts", lambda *_: True),
        patch.object(Aggregator, "_take_final", again),
    ):
        yield
