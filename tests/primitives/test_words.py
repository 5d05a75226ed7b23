"""Counts, articles and names in messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heatsink.primitives.words import counted, data_size, did_you_mean, duration, with_article

SOURCE = Path(__file__).parents[2] / "src"


def test_one_is_singular_and_all_other_counts_are_plural() -> None:
    assert counted(1, "query", "queries") == "1 query"
    assert counted(0, "query", "queries") == "0 queries"
    assert counted(2_000, "bucket") == "2,000 buckets"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.5, "0.5 s"),
        (19.9997, "20 s"),
        (90, "90 s"),
        (720, "12 min"),
        (12_600, "3.5 h"),
        (86_399.99, "24 h"),
        (7 * 86_400, "7 days"),
        (1_500 * 86_400, "1,500 days"),
    ],
)
def test_a_duration_is_in_the_unit_that_suits_it(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 kB"),
        (352, "0.352 kB"),
        (52_300_000, "52.3 MB"),
        (999_000_000, "999 MB"),
        (4.2e9, "4.2 GB"),
    ],
)
def test_a_number_of_bytes_is_in_the_unit_that_suits_it(size: float, said: str) -> None:
    assert data_size(size) == said


def test_no_message_leaves_the_plural_to_the_reader() -> None:
    """ "1 bucket(s)": use `counted`."""
    left = re.compile(r"\w\} \w+\(s\)|\d \w+\(s\)")
    found = [path.name for path in SOURCE.rglob("*.py") if left.search(path.read_text())]
    assert found == []


def test_the_article_follows_the_first_letter() -> None:
    assert with_article("Actions") == "an Actions"
    assert with_article("BucketRules") == "a BucketRules"
    assert with_article("UUID") == "a UUID"


def test_the_nearest_name_is_offered_and_without_one_all_of_them() -> None:
    assert did_you_mean("bucket_max", ["buckets_max", "lease_s"]) == "did you mean 'buckets_max'?"
    assert did_you_mean("colour", ["buckets_max", "lease_s"]) == "use one of buckets_max, lease_s"
