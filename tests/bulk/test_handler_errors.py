"""Exceptions of handlers reach the hooks and the log, with tracebacks and at a bounded rate."""

from __future__ import annotations

import logging
import traceback

import pytest

from heatsink.bulk import Context, Fail, RateLimited, Retry
from heatsink.bulk.work.handler_errors import EVERY_S, HandlerErrors
from heatsink.primitives.hooks import Event, Hook, Hooks
from heatsink.testing import ManualClock

from .world import World, on_virtual_time


class Seen(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def test_the_exception_of_a_handler_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @on_virtual_time
    async def play() -> None:
        world = World()

        @world.action(max_attempts=2)
        async def boom(_: object, __: Context) -> None:
            raise KeyError("oops")

        async with world.consumer():
            batch = await world.bulk.submit("boom", range(20), id="b1")
            assert (await world.bulk.wait(batch.id, 60.0)).failed == 20

    with caplog.at_level(logging.WARNING, "heatsink"):
        play()
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "bulk.error"]
    assert "batch 'b1': the handler of 'boom' raised KeyError on item" in record.getMessage()
    assert record.exc_info is not None
    assert "in boom" in "".join(traceback.format_exception(record.exc_info[1]))


async def test_each_kind_of_error_is_reported_once_a_minute_with_the_number_of_others() -> None:
    clock, seen = ManualClock(), Seen()
    errors = HandlerErrors(Hooks([seen]), clock)
    context = Context("b1", "t", "tag", 0, 7, 2)
    for error in (KeyError("a"), KeyError("b"), OSError("c"), KeyError("d")):
        errors.note(context, error, is_final=True)
    await clock.advance(EVERY_S)
    errors.note(context, KeyError("e"), is_final=False)
    assert [str(event.error) for event in seen.events] == ["'a'", "c", "'e'"]
    assert [event.fields["more"] for event in seen.events] == [0, 0, 2]
    assert seen.events[2].message.endswith("tried again; 2 more KeyErrors since the last report")


def test_a_text_that_no_log_can_hold_is_left_out() -> None:
    seen = Seen()
    errors = HandlerErrors(Hooks([seen]), ManualClock())
    errors.note(Context("b1", "t", "tag", 0, 0, 1), OSError("\ud800"), is_final=True)
    (event,) = seen.events
    assert event.error is None
    assert "raised OSError on item 0" in event.message


def test_what_a_handler_chooses_to_answer_is_no_error() -> None:
    clock, seen = ManualClock(), Seen()
    errors = HandlerErrors(Hooks([seen]), clock)
    for chosen in (Fail("no"), Retry(5.0), RateLimited()):
        errors.note(Context("b1", "t", "tag", 0, 0, 1), chosen, is_final=True)
    assert seen.events == []
