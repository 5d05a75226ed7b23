"""The progress bar: on a terminal only, and apart from what a command prints."""

from __future__ import annotations

import os
import pty

import click
import pytest

from heatsink.server.commands.progress import progress_bar

BYTES_MAX = 100_000


def work() -> None:
    with progress_bar() as bar:
        task = bar.add_task("replaying", total=4)
        bar.advance(task)
        click.echo("the-id")
        bar.refresh()


def read_until(word: str, terminal: int) -> str:
    shown = ""
    while word not in shown:  # a terminal hands over what it has, which may be a part
        shown += os.read(terminal, BYTES_MAX).decode()
    return shown


def test_nothing_is_shown_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    work()
    assert capsys.readouterr() == ("the-id\n", "")


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
        shown = read_until("rows checked", reading)
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
        shown = read_until("left", reading)
    os.close(reading)
    assert "replaying" in shown
    assert "25%" in shown
    assert "left" in shown
    assert "the-id" not in shown
    assert capsys.readouterr().out == "the-id\n"
