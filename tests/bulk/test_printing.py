"""What `heatsink bulk` prints of names and items that others chose."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from heatsink.bulk.batch import Batch, Failure, Progress
from heatsink.server.commands import bulk as commands

NASTY = "[/red]\x1b[2J\n"
ITEMS: list[Any] = [{None: 1}, {(1, 2): 3}, {"a": b"b"}]


class Nasty:
    async def list(self, *_: Any) -> list[Batch]:
        return [Batch(NASTY, "act", "[bold]ann\x07", 0)]

    async def status(self, id: str) -> Progress:
        return Progress(id, "act", NASTY, "open", 0, 0, 0, 0, 0, 0, 0, None, NASTY)

    async def failures(self, _: str) -> AsyncIterator[Failure]:
        for index, item in enumerate(ITEMS):
            yield Failure(index, item, "why", 1)


@pytest.fixture(autouse=True)
def nasty(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connect(*_: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(bulk=Nasty())

    monkeypatch.setattr(commands, "connect_queue", connect)


def printed(*words: str) -> str:
    ran = CliRunner().invoke(commands.bulk, [*words, "--queue", "redis://unused"])
    assert (ran.exception, ran.exit_code) == (None, 0)
    return ran.stdout


@pytest.mark.parametrize("words", [("list",), ("status", NASTY)])
def test_names_are_printed_as_they_are_but_steer_no_terminal(words: tuple[str, ...]) -> None:
    said = printed(*words)
    assert "[/red]�[2J�" in said
    assert not {"\x1b", "\x07"} & set(said)


@pytest.mark.parametrize("id", ["0123456789abcdef01234567", "nightly of ann, " + "x" * 100])
def test_ids_are_listed_whole_and_reasons_to_their_end(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waiting(*_: Any) -> list[Batch]:
        reason = "waiting: no worker has action 'tag-conversation'"
        return [
            Batch(id, "tag-conversation", "channel-7", 0, "running", items=10**6, reason=reason)
        ]

    monkeypatch.setattr(Nasty, "list", waiting)
    monkeypatch.setenv("COLUMNS", "80")
    said = printed("list")
    assert id in said
    assert "waiting: no worker has action 'tag-conversation'" in said


def test_items_that_json_has_no_words_for_are_described() -> None:
    found = [json.loads(line)["item"] for line in printed("failures", "x").splitlines()]
    assert found == ["{None: 1}", "{(1, 2): 3}", {"a": "Yg=="}]
    rows = list(csv.reader(printed("failures", "x", "--csv").splitlines()))
    assert [json.loads(row[-1]) for row in rows[1:]] == found
