"""msgspec's words become ours: the field, what it must be, and the nearest right name."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from heatsink.primitives.validation import what_is_wrong


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    body: str
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50
    order: Literal["newest", "oldest"] = "newest"
    colour: Colour | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=500)] = "none"
    pairs: list[Inner] = []
    when: datetime | None = None
    of: UUID | None = None
    fresh_for: float = 0.0
    value: bool = False


WRONG: dict[str, tuple[Any, str, str]] = {
    "kind": ({"limit": "5"}, "limit", "limit must be a whole number, not text"),
    "low": ({"limit": 0}, "limit", "limit must be a whole number of at least 1"),
    "high": ({"limit": 1_001}, "limit", "limit must be a whole number of at most 1,000"),
    "literal": ({"order": "up"}, "order", "order must be one of newest, oldest, not 'up'"),
    "enum": ({"colour": "green"}, "colour", "colour must be one of red, blue, not 'green'"),
    "short": ({"reason": ""}, "reason", "reason must be text of at least 1 character"),
    "nested": ({"pairs": [{"name": 1}]}, "pairs[0].name", "must be text, not a whole number"),
    "nested unknown": ({"pairs": [{"nam": ""}]}, "pairs[0].nam", "no field 'pairs[0].nam'"),
    "unknown": ({"limitt": 5}, "limitt", "there is no field 'limitt': did you mean 'limit'?"),
    "boolean": ({"value": "yes"}, "value", "value must be true or false, not text"),
    "time": ({"when": "yesterday"}, "when", "when is not valid: Invalid RFC3339"),
    "id": ({"of": "x"}, "of", "of is not valid: Invalid UUID"),
    "float": ({"fresh_for": "1s"}, "fresh_for", "fresh_for must be a number, not text"),
}


@pytest.mark.parametrize(("data", "field", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_field_is_named_in_our_words(data: Any, field: str, words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"body": "x", **data}, Asked)
    found, said = what_is_wrong(caught.value, Asked)
    assert (found, words in said) == (field, True), said
    assert "Expected" not in said
    assert "`" not in said


def test_a_missing_field_and_a_body_of_another_kind_are_named() -> None:
    for data, answer in (
        ({}, ("body", "body is missing: add it")),
        ([], ("body", "the request's JSON must be an object, not an array")),
    ):
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.convert(data, Asked)
        assert what_is_wrong(caught.value, Asked) == answer
