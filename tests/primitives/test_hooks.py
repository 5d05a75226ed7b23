"""Hooks observe and never interfere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import pytest

from heatsink.errors import InvalidSetting
from heatsink.primitives.hooks import Call, Event, Hook, Hooks


class Recorder(Hook):
    def __init__(self, name: str, seen: list[str]) -> None:
        self._name = name
        self._seen = seen

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        self._seen.append(f"{self._name} enters {call.name}")
        try:
            yield
        except ValueError as error:
            self._seen.append(f"{self._name} saw {error}")
            raise
        finally:
            self._seen.append(f"{self._name} leaves")

    def on_event(self, event: Event) -> None:
        self._seen.append(f"{self._name}: {event.name}")


class Broken(Hook):
    def __init__(self, when: str) -> None:
        self._when = when

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:  # noqa: ARG002
        if self._when == "entering":
            raise RuntimeError("broken hook")
        try:
            yield
        finally:
            if self._when == "leaving":
                raise RuntimeError("broken hook")

    def on_event(self, event: Event) -> None:  # noqa: ARG002
        raise RuntimeError("broken hook")

    def on_open(self, client: object) -> None:  # noqa: ARG002
        raise RuntimeError("broken hook")

    def on_close(self, client: object) -> None:  # noqa: ARG002
        raise RuntimeError("broken hook")

    def trace(self) -> str:
        raise RuntimeError("broken hook")


class Swallowing(Hook):
    @contextmanager
    def around(self, call: Call) -> Iterator[None]:  # noqa: ARG002
        with suppress(ValueError):
            yield


def test_hooks_are_entered_in_order_and_left_in_the_opposite_one() -> None:
    seen: list[str] = []
    with Hooks([Recorder("a", seen), Recorder("b", seen)]).around(Call("log.append", "k")):
        seen.append("call")
    assert seen == ["a enters log.append", "b enters log.append", "call", "b leaves", "a leaves"]


def test_every_hook_sees_the_error_and_so_does_the_caller() -> None:
    seen: list[str] = []
    hooks = Hooks([Recorder("a", seen), Recorder("b", seen)])
    with pytest.raises(ValueError, match="wrong"), hooks.around(Call("log.append")):
        raise ValueError("wrong")
    assert [each for each in seen if "saw" in each] == ["b saw wrong", "a saw wrong"]


def test_a_hook_cannot_suppress_the_error_of_a_call() -> None:
    with pytest.raises(ValueError, match="wrong"), Hooks([Swallowing()]).around(Call("log.page")):
        raise ValueError("wrong")


@pytest.mark.parametrize("when", ["entering", "leaving"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_hook_raises_is_logged_and_the_call_goes_on(
    when: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    hooks = Hooks([Recorder("a", seen), Broken(when), Recorder("b", seen)])
    expected = pytest.raises(ValueError, match="wrong") if fails else nullcontext()
    with expected, hooks.around(Call("log.append")):
        if fails:
            raise ValueError("wrong")
    assert seen.count("a leaves") == seen.count("b leaves") == 1
    assert "the hook Broken failed" in caplog.text
    assert "broken hook" in caplog.text


def test_a_broken_hook_keeps_no_event_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    hooks = Hooks([Broken("always"), Recorder("a", seen)])
    hooks.event("decision", "k has 4 buckets")
    hooks.opened(object())
    hooks.closing(object())
    assert hooks.trace() == ""
    assert seen == ["a: decision"]
    assert caplog.text.count("the hook Broken failed") == 4


def test_events_are_log_records_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Hooks().event("leadership.gained", "it leads now", fields={"term": 7})
    Hooks().failed("reporting heat", ValueError("wrong"))
    gained, failed = caplog.records
    assert (gained.name, gained.getMessage(), gained.levelname) == (
        "heatsink.lead",
        "it leads now",
        "INFO",
    )
    assert vars(gained)["event"] == "leadership.gained"
    assert vars(gained)["fields"] == {"term": 7}
    assert (failed.name, failed.levelname) == ("heatsink", "ERROR")
    assert failed.exc_info is not None


def test_only_hooks_that_override_around_observe_calls() -> None:
    class Events(Hook):
        def on_event(self, event: Event) -> None: ...

    assert not Hooks().observes_calls
    assert not Hooks([Events()]).observes_calls
    assert Hooks([Events(), Swallowing()]).observes_calls


@pytest.mark.parametrize("hooks", [Hook(), "hook", [print], [Hook]])
def test_what_is_no_hook_is_refused_by_name(hooks: object) -> None:
    with pytest.raises(InvalidSetting, match="hooks") as refusal:
        Hooks(hooks)  # type: ignore[arg-type]
    assert (refusal.value.field or "").startswith("hooks")
