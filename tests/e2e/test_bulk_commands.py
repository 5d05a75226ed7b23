"""`heatsink worker` and `heatsink bulk` as a user types them, with what they say and return."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from heatsink.testing.redis import RedisServer
from tests.servers import real

from .bulk import Workers, heatsink, running_workers

pytestmark = pytest.mark.timeout(120)
GOOD = "n,name\n" + "".join(f"{n},right\n" for n in range(150))
NOBODY = "redis://127.0.0.1:1"


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with real(lambda: RedisServer(append_only=True)) as server:
        yield server


@pytest.fixture(scope="module")
def workers(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("app")
    with running_workers(redis, folder, lease_s=10.0) as running:
        running.start()
        submit(folder, GOOD, "picky", "--queue", redis.url)  # done: the worker has announced itself
        yield running


def submit(folder: Path, text: str, *words: str, name: str = "items.csv") -> tuple[int, str, str]:
    file = folder / name
    file.write_text(text)
    action, *options = words
    ran = heatsink(folder, "bulk", "submit", action, name, *options)
    return ran.exit_code, ran.stdout.strip(), ran.stderr


def test_a_file_is_submitted_watched_and_done(redis: RedisServer, workers: Workers) -> None:
    queue = ("--queue", redis.url)
    code, id, said = submit(workers.folder, GOOD, "picky", *queue, "--tenant", "channel-7")
    assert code == 0
    assert "done: 150 done, 0 failed of 150" in said
    assert workers.starts_of(id).keys() == set(range(150))
    status = heatsink(workers.folder, "bulk", "status", id, *queue, "--json")
    assert json.loads(status.stdout)["state"] == "done"
    assert id in heatsink(workers.folder, "bulk", "list", *queue, "--tenant", "channel-7").stdout


def test_failures_come_as_csv_and_are_tried_again(redis: RedisServer, workers: Workers) -> None:
    queue = ("--queue", redis.url)
    text = GOOD + "150,wrong\n"
    code, id, said = submit(workers.folder, text, "picky", *queue, name="one-wrong.csv")
    assert code == 1
    assert "failed: 150 done, 1 failed of 151" in said
    assert f"see: heatsink bulk failures {id} --csv --queue {redis.url}\n" in said
    [hint] = [line for line in said.splitlines() if line.startswith("see: heatsink ")]
    failures = heatsink(workers.folder, *shlex.split(hint)[2:]).stdout
    [failure] = csv.DictReader(failures.splitlines())
    assert (failure["index"], failure["reason"]) == ("150", "the name is wrong")
    assert json.loads(failure["item"]) == {"n": "150", "name": "wrong"}
    assert heatsink(workers.folder, "bulk", "retry-failed", id, *queue).exit_code == 0
    again = submit(workers.folder, text, "picky", *queue, "--id", id, name="one-wrong.csv")
    assert again[0] == 1
    assert workers.starts_of(id)[150] == 2


def test_wrong_input_is_refused_in_one_line_that_says_the_cure(
    redis: RedisServer, workers: Workers
) -> None:
    folder, queue = workers.folder, ("--queue", redis.url)
    (folder / "good.csv").write_text(GOOD)
    (folder / "short.csv").write_text("n,name\n1,a\n2\n")
    (folder / "bad.jsonl").write_text('{"n": 1}\n{"n":\n')
    (folder / "half.jsonl").write_text('{"n": "\\ud800"}\n')
    (folder / "latin.jsonl").write_bytes(b'{"n": "\xff"}\n')
    (folder / "items.txt").write_text("1\n")
    cases = {
        ("worker", "nothere:actions", *queue): "there is no module 'nothere'",
        ("worker", "myapp:nothing", *queue): "myapp:nothing is not a heatsink.bulk.Actions",
        ("worker", "myapp", *queue): "MODULE:ACTIONS",
        ("worker", "myapp:actions", "--queue", NOBODY): "127.0.0.1:1",
        ("bulk", "submit", "unknown", "good.csv", *queue): "workers have brief, deadly",
        ("bulk", "submit", "picky", "short.csv", *queue): "short.csv line 3",
        ("bulk", "submit", "picky", "bad.jsonl", *queue): "bad.jsonl line 2 is not JSON",
        ("bulk", "submit", "picky", "half.jsonl", *queue): "\\ud800 is a lone surrogate",
        ("bulk", "submit", "picky", "latin.jsonl", *queue): "line 1 is not JSON: it is not UTF-8",
        ("bulk", "submit", "picky", "items.txt", *queue): "must end in .csv",
        ("bulk", "submit", "picky", "good.csv", *queue, "--rate", "5/x"): "rate must be like",
        ("bulk", "submit", "picky", "good.csv", "--queue", NOBODY): "nothing was accepted",
        ("bulk", "list", "--queue", NOBODY): "its server runs\n",
        ("bulk", "status", "unknown", *queue): "there is no batch 'unknown'",
    }
    not_there = {words for words in cases if NOBODY in words or "status" in words}
    for words, expected in cases.items():
        ran = heatsink(folder, *words)
        assert ran.exit_code == (1 if words in not_there else 2), words
        assert expected in ran.stderr, words
        assert "Traceback" not in ran.stderr, words


def test_what_was_half_submitted_runs_nothing(redis: RedisServer, workers: Workers) -> None:
    broken = GOOD + "150\n"
    code, _, said = submit(
        workers.folder, broken, "picky", "--queue", redis.url, "--id", "half", name="half.csv"
    )
    assert code == 2
    assert "half.csv line 152" in said
    status = heatsink(workers.folder, "bulk", "status", "half", "--queue", redis.url)
    assert "aborted" in status.stdout
    assert not workers.starts_of("half")
