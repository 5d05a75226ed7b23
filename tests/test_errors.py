"""One table says how servers and commands answer an error."""

from __future__ import annotations

import inspect

import pytest

from heatsink import errors
from heatsink.errors import ANSWERS, ErrorCodes, answer_of, answer_to
from heatsink.primitives.checks import check_whole

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.HeatsinkError)
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_an_answer(kind: type[errors.HeatsinkError]) -> None:
    answer = answer_to(kind)
    assert answer.status in {400, 404, 409, 410, 422, 429, 503}
    assert answer.retryable == (answer.status in {429, 503})
    if issubclass(kind, errors.Retryable):
        assert answer.retryable, "the class says that the same call may succeed later"
    if answer.exit_code == 2:
        assert issubclass(kind, errors.InvalidInput)


def test_the_nearest_class_counts() -> None:
    assert answer_to(errors.NoTable) == ANSWERS[errors.Misconfigured]
    assert answer_to(errors.InvalidKey) == ErrorCodes(400, 2)
    assert answer_to(errors.IdReused).status == 422


def test_retries_that_were_throttled_until_the_deadline_are_a_429() -> None:
    throttled = errors.Overloaded("tried 4 times")
    throttled.__cause__ = errors.Throttled("chat")
    silent = errors.Overloaded("tried 4 times")
    silent.__cause__ = errors.Unavailable("no answer")
    assert [answer_of(error).status for error in (throttled, silent)] == [429, 503]


def test_a_field_is_an_attribute() -> None:
    with pytest.raises(errors.InvalidSetting) as refused:
        check_whole("limit", 0, 1, 10)
    assert refused.value.field == "limit"
    assert errors.InvalidKey("whatever it says").field == "key"
    wrong = errors.InvalidId(wrong="'id' is no UUID")
    assert (str(wrong), wrong.field) == ("id 'id' is no UUID", "id")
    token = wrong.called("token")
    assert (str(token), token.field) == ("token 'id' is no UUID", "token")
    whole = errors.InvalidId("take the id of an earlier answer").called("after")
    assert (str(whole), whole.field) == ("take the id of an earlier answer", "after")
    assert errors.Unavailable("no answer").field is None
