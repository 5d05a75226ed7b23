"""What commands say if they lose their store or cluster after they have changed something."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from heatsink.cli import main
from heatsink.cluster.mover import MoveReport
from heatsink.errors import Unavailable
from heatsink.server.commands import adopt
from heatsink.server.commands.cluster import _says_what_moved
from heatsink.server.commands.remote import Remote


def report(slots: int, error: str = "") -> MoveReport:
    found: Any = SimpleNamespace(job=SimpleNamespace(slots=range(slots)), error=error)
    return cast("MoveReport", found)


def test_slots_that_moved_before_an_error_are_counted_in_it() -> None:
    reports = [report(3), report(5, "refused"), report(4)]
    with (
        pytest.raises(Unavailable, match=r"^no answer\. Before this error, 7 slots moved, .*look"),
        _says_what_moved(reports),
    ):
        raise Unavailable("no answer")


@pytest.mark.parametrize(("step", "is_said"), [((), False), (("--complete",), True)])
def test_a_step_of_an_adoption_that_fails_says_whether_it_may_have_changed_something(
    monkeypatch: pytest.MonkeyPatch, step: tuple[str, ...], is_said: bool
) -> None:
    async def lost(*_: object) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(adopt, "_step", lost)
    ran = CliRunner().invoke(main, ["adopt", "dynamodb://heatsink?region=x", "chat", *step])
    assert ran.exit_code == 1
    assert ("This step may already have changed something" in ran.stderr) == is_said


def test_a_stream_of_events_that_ends_is_an_error() -> None:
    said = nullcontext([b"event: progress\n", b'data: {"done": 1}\n'])
    with patch.object(Remote, "_open", lambda *_: said):
        events = Remote("http://127.0.0.1:1", None).events()
        assert next(events) == ("progress", {"done": 1})
        with pytest.raises(Unavailable, match="has stopped: repeat the command"):
            next(events)
