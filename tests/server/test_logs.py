"""Nobody forges a line of the log, whatever is in the text that is logged."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import httpx
import pytest

from heatsink import connect
from heatsink.primitives.clock import SystemClock
from heatsink.server.api.requests import Token, parse_token
from heatsink.server.process import ServeSettings, running_app
from heatsink.server.running import set_up
from tests.conftest import logging_as_before

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) +\S")
FORGED = "2026-01-01 00:00:00,000 INFO    admin DELETE /v1/everything → 200"
ENDS_OF_LINES = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]
OTHERS = ["\x1b[2K", "\x00", "\x7f", "\x9b", "\u202e", "\ud800", "\\"]


@pytest.fixture
def root() -> logging.Logger:
    return logging.getLogger()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_test_that_sets_up_the_log_changes_no_other_test(
    as_json: bool, root: logging.Logger
) -> None:
    names = ("heatsink.serve", "heatsink.audit", "heatsink.lead", "uvicorn.error")
    loggers = [root, *map(logging.getLogger, names)]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    with logging_as_before():
        set_up(as_json)
        assert [(logger.level, logger.handlers) for logger in loggers] != before
    assert [(logger.level, logger.handlers) for logger in loggers] == before


@pytest.mark.parametrize("odd", ENDS_OF_LINES + OTHERS)
def test_a_message_is_one_line_of_printable_text(
    odd: str, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(as_json=False)
    root.warning("no such key %s", f"a{odd}{FORGED}")
    [line] = capsys.readouterr().err.splitlines()
    assert LINE.match(line)
    assert line.endswith(FORGED)
    assert line.isprintable()


def test_a_traceback_is_readable_and_its_lines_look_like_no_others(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(as_json=False)
    try:
        raise ValueError(f"no such key\n{FORGED}\r{FORGED}\x1b[31m")
    except ValueError:
        root.exception("a request\nfailed", stack_info=True)
    first, *others = capsys.readouterr().err.splitlines()
    assert LINE.match(first)
    assert first.endswith("a request\\nfailed")
    assert any(line.strip().startswith("File ") for line in others)
    assert not any(LINE.match(line) for line in others)
    assert all(line.isprintable() and line.startswith("  ") for line in others)


def test_json_has_one_line_too(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up(as_json=True)
    root.warning("no such key %s", f"a\n{FORGED}\ud800")
    [line] = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == f"no such key a\n{FORGED}\\ud800"


async def test_a_key_with_a_line_in_it_forges_none_in_the_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(as_json=False)
    token: Token = parse_token("admin:" + "x" * 20)
    settings = ServeSettings(data=tmp_path, tokens=(token,))
    headers = {"authorization": "Bearer " + "x" * 20}
    async with (
        connect("memory://") as hs,
        running_app(hs, settings, SystemClock()) as app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost", headers=headers
        ) as api,
    ):
        path = f"/v1/keys/a%0A{FORGED.replace('/', '%2F')}%1B%5B2K/pin"
        await api.put(path, json={"buckets": 2, "reason": "a\nlaunch"})
    lines = capsys.readouterr().err.splitlines()
    assert any("/pin" in line for line in lines)
    assert all(LINE.match(line) and line.isprintable() for line in lines)
    assert FORGED not in lines
