"""Progress: a bar on a terminal, elsewhere lines; both apart from what a command prints."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.progress import Progress

from heatsink.cli import main
from heatsink.errors import Overloaded
from heatsink.server.commands import bulk
from heatsink.server.commands.progress import line_of, progress_bar
from tests.waiting import until

BYTES_MAX = 100_000


def work() -> None:
    with progress_bar() as bar:
        task = bar.add_task("replaying", total=4)
        bar.advance(task)
        click.echo("the-id")
        bar.refresh()


def read_until(terminal: int, *words: str) -> str:
    """Read until the words came, in this order. A terminal hands over what it has, in parts."""
    shown, pattern = "", re.compile(".*".join(map(re.escape, words)), re.DOTALL)
    while not pattern.search(shown):
        shown += os.read(terminal, BYTES_MAX).decode()
    return shown


def test_a_quick_command_prints_no_progress_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    work()
    assert capsys.readouterr() == ("the-id\n", "")


@pytest.mark.parametrize(("count", "line"), [("", "replaying: 25 %"), ("rows checked", "1 rows")])
def test_a_slow_command_prints_plain_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], count: str, line: str
) -> None:
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown += capsys.readouterr().err
        return shown.count(line) >= 2

    with progress_bar(count, every_s=0.01) as bar:
        bar.advance(bar.add_task("replaying", total=4))
        until(is_shown, "two lines of progress")
    assert "\x1b" not in shown
    assert not [each for each in threading.enumerate() if each.name == "progress"]


def test_a_line_without_an_end_in_sight_says_how_long_it_took_so_far() -> None:
    bar = Progress(get_time=iter(range(0, 100, 20)).__next__, disable=True)
    bar.add_task("running", total=3)
    assert line_of(bar.tasks[0]) == "running: 0 %, 20 s so far"


def test_a_line_says_what_is_left() -> None:
    now_s = 0.0
    bar = Progress(get_time=lambda: now_s, disable=True)
    task = bar.add_task("replaying", total=10)
    bar.advance(task, 5)
    now_s = 5.0
    assert line_of(bar.tasks[0]) == "replaying: 50 %, about 5 s left"


def test_the_time_left_grows_while_nothing_moves_until_it_would_be_false() -> None:
    now_s = 0.0
    bar = Progress(get_time=lambda: now_s, disable=True)
    task = bar.add_task("running", total=100)
    for done in range(1, 90):
        now_s = float(done)
        bar.update(task, completed=done)
    assert line_of(bar.tasks[0]) == "running: 89 %, about 11 s left"
    now_s = 178.0
    assert line_of(bar.tasks[0], still_s=10.0) == "running: 89 %, about 22 s left"
    assert line_of(bar.tasks[0], still_s=89.0) == "running: 89 %, 2.97 min so far"


def test_a_terminal_shows_a_count_where_the_total_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with progress_bar(count="rows checked") as bar:
            bar.advance(bar.add_task("", total=None), 1_234)
            bar.refresh()
        terminal.flush()
        shown = read_until(reading, "1,234 rows checked")
    os.close(reading)
    assert "1,234 rows checked" in shown


def test_a_terminal_shows_what_is_left_and_a_pipe_gets_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(writing, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        work()
        terminal.flush()
        shown = read_until(reading, "25%", "left")
    os.close(reading)
    assert "replaying" in shown
    assert "25%" in shown
    assert "left" in shown
    assert "the-id" not in shown
    assert capsys.readouterr().out == "the-id\n"


def test_a_submission_whose_items_are_all_sent_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "items.jsonl").write_text("1\n2\n")
    bar, shown = progress_bar(), []

    class SlowQueue:
        async def submit(self, _action: str, items: Iterable[object], **_: object) -> None:
            shown.append(bar.tasks[0].description)
            assert list(items) == [1, 2]
            shown.append(bar.tasks[0].description)
            raise Overloaded("no answer")

    def with_slow_queue(run: Callable[[Any], Coroutine[Any, Any, Any]], **_: object) -> Any:
        return asyncio.run(run(SlowQueue()))

    monkeypatch.setattr(bulk, "progress_bar", lambda: bar)
    monkeypatch.setattr(bulk, "_with_bulk", with_slow_queue)
    result = CliRunner().invoke(main, ["bulk", "submit", "tag", str(tmp_path / "items.jsonl")])
    assert result.exit_code == 1
    assert shown == ["submitting", "all items are sent; waiting until the queue confirms them"]
