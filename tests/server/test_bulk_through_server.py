"""`heatsink bulk … --server URL`: batches through a running server, without the queue's URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main
from tests.processes import Served, serving
from tests.waiting import until

ACTIONS = """
from heatsink.bulk import Actions, Fail

actions = Actions()


@actions.action("picky", max_attempts=1)
async def picky(item, context):
    if item["name"] == "wrong":
        raise Fail("the name is wrong")
    return {"n": int(item["n"])}
"""
TOKEN = "writer-1"  # noqa: S105
ROWS = "n,name\n" + "".join(f"{n},right\n" for n in range(40))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "bulk_app.py").write_text(ACTIONS)
    flags = ("--store", "memory://", "--actions", "bulk_app:actions")
    limits = ("--limit", "stream_bytes=200000", "--token", f"operate:{TOKEN}")
    with serving(folder, *flags, *limits) as served:
        yield served


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["bulk", *words], env=environment)


def asked(server: Served, *words: str) -> Result:
    return run(*words, "--server", server.url, "--token", TOKEN)


def test_a_file_is_submitted_watched_steered_and_listed(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text(ROWS + "40,wrong\n")
    order = ("--tenant", "channel-7", "--priority", "3", "--one-partition", "--id", "mine")
    submitted = asked(server, "submit", "picky", str(file), *order)
    assert (submitted.exit_code, submitted.stdout) == (1, "mine\n"), submitted.stderr
    assert "failed: 40 done, 1 failed of 41" in submitted.stderr
    assert f"see: heatsink bulk failures mine --csv --server {server.url}\n" in submitted.stderr
    assert json.loads(asked(server, "status", "mine", "--json").stdout)["done"] == 40
    listed = json.loads(asked(server, "list", "--tenant", "channel-7", "--json").stdout)
    assert [(line["id"], line["priority"]) for line in listed] == [("mine", 3)]
    [failure] = asked(server, "failures", "mine").stdout.splitlines()
    assert json.loads(failure)["item"] == {"n": "40", "name": "wrong"}
    again = asked(server, "retry-failed", "mine")
    assert (again.exit_code, again.stdout) == (0, "mine: failed items run again\n")


def test_results_are_kept_and_printed(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text(ROWS)
    order = ("--keep-results", "--result-days", "2", "--id", "results")
    submitted = asked(server, "submit", "picky", str(file), *order)
    assert submitted.exit_code == 0, submitted.stderr
    lines = asked(server, "results", "results", "--after", "37").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"index": n, "value": {"n": n}} for n in (38, 39)
    ]
    table = asked(server, "results", "results", "--csv").stdout.splitlines()
    assert table[:2] == ["index,value", '0,"{""n"":0}"']
    assert len(table) == 41
    follows = ("--then", "picky", "--otherwise", "picky", "--id", "first")
    assert asked(server, "submit", "picky", str(file), *follows).exit_code == 0
    without = asked(server, "results", "mine")
    assert without.exit_code != 0
    assert "keeps no results" in without.stderr


def test_the_environment_names_the_server(server: Served) -> None:
    environment = {"HEATSINK_SERVER": server.url, "HEATSINK_TOKEN": TOKEN}
    assert run("list", **environment).exit_code == 0


def test_a_refusal_arrives_while_the_file_is_still_sent(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "large.jsonl"
    file.write_text('{"name": "right"}\n' * 200_000)
    refused = asked(server, "submit", "picky", str(file), "--id", "large")
    assert refused.exit_code != 0
    assert "larger than 200,000 bytes" in refused.stderr
    assert "Traceback" not in refused.stderr
    status = json.loads(asked(server, "status", "large", "--json").stdout)
    assert (status["state"], status["done"]) == ("aborted", 0)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("", "i.csv"), "Invalid value for 'ACTION': the value is empty"),
        (("picky", "i.csv", "--id", "a b"), "id must be visible ASCII characters without spaces"),
    ],
)
def test_a_mistake_is_answered_in_the_words_of_the_command(
    server: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "i.csv").write_text("name\nright\n")
    refused = asked(server, "submit", *words)
    assert (refused.exit_code, complaint in refused.stderr) == (2, True), refused.stderr


def test_a_batch_that_was_not_sent_whole_says_so(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"name": "right"}\n{"name"\n')
    assert "line 2 is not JSON" in asked(server, "submit", "picky", str(file), "--id", "b").stderr

    def reason() -> str:
        return str(json.loads(asked(server, "status", "b", "--json").stdout)["reason"])

    until(lambda: "the client disconnected before it had sent the whole body" in reason(), "why")


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ((), "Name the queue with --queue redis://host:6379, or a running `heatsink serve`"),
        (("--server", "http://127.0.0.1:1", "--queue", "redis://x"), "not both"),
        (("--server", "http://127.0.0.1:1", "--stage", "x"), "leave --stage out"),
        (("--server", "http://127.0.0.1:1", "--place", "0=redis://x"), "leave --place out"),
    ],
)
def test_what_names_no_queue_or_two_is_refused_with_the_cure(
    words: tuple[str, ...], cure: str
) -> None:
    refused = run("list", *words)
    assert (refused.exit_code, cure in refused.stderr) == (2, True), refused.stderr
