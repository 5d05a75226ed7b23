"""`heatsink bulk … --server URL`: batches through a running server, without the queue's URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main
from heatsink.server.commands import bulk
from heatsink.testing.redis import RedisServer
from tests.processes import Served, serving
from tests.waiting import until

ACTIONS = """
import asyncio

from heatsink.bulk import Actions, Fail, Limit

actions = Actions()


@actions.action("mail", limits=[Limit("smtp", running=2, key="account")])
async def mail(item, context):
    await asyncio.sleep(item["takes_s"])


@actions.action("picky", max_attempts=1)
async def picky(item, context):
    if item["name"] == "wrong":
        raise Fail("the name is wrong")
    return {"n": int(item["n"])}
"""
TOKEN = "writer-1"  # noqa: S105
ADMIN = "admin-12"
ROWS = "n,name\n" + "".join(f"{n},right\n" for n in range(40))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "bulk_app.py").write_text(ACTIONS)
    flags = ("--store", "memory://", "--actions", "bulk_app:actions")
    limits = (
        "--limit",
        "stream_bytes=200000",
        "--token",
        f"operate:{TOKEN}",
        "--token",
        f"admin:{ADMIN}",
    )
    with serving(folder, *flags, *limits) as served:
        yield served


def test_a_queue_whose_redis_is_dead_is_named_soon(tmp_path: Path) -> None:
    with RedisServer() as redis:
        flags = ("--store", "memory://", "--queue", redis.url, "--relaxed")
        with serving(tmp_path, *flags) as served:
            assert run("list", "--server", served.url).exit_code == 0
            redis.kill()
            for words in (["list"], ["controls"]):
                said = run(*words, "--server", served.url)
                assert said.exit_code == 1
                assert "the queue did not answer for 2 s (Redis at 127.0.0.1" in said.stderr
            found = CliRunner().invoke(main, ["doctor", "--server", served.url])
            assert found.exit_code == 1
            assert "wrong  queue" in found.stdout


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
        (("picky", "i.csv", "--id", "a\tb"), "id must be printable characters"),
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


def test_a_batch_that_was_not_sent_whole_says_so(server: Served) -> None:
    with closing(HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.putrequest("POST", "/v1/bulk/picky")
        for name, value in {
            "authorization": f"Bearer {TOKEN}",
            "content-type": "application/x-ndjson",
            "content-length": "1000",
            "idempotency-key": "b",
        }.items():
            connection.putheader(name, value)
        connection.endheaders(b'{"name": "right"}\n')
        until(lambda: asked(server, "status", "b").exit_code == 0, "the batch is open")

    def reason() -> str:
        return str(json.loads(asked(server, "status", "b", "--json").stdout)["reason"])

    until(lambda: "the client disconnected before it had sent the whole body" in reason(), "why")


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("--server", "http://127.0.0.1:1", "--queue", "redis://x"), "not both"),
        (("--server", "http://127.0.0.1:1", "--stage", "x"), "leave --stage out"),
        (("--server", "http://127.0.0.1:1", "--place", "0=redis://x"), "leave --place out"),
    ],
)
def test_what_names_two_queues_is_refused_with_the_cure(words: tuple[str, ...], cure: str) -> None:
    refused = run("list", *words)
    assert (refused.exit_code, cure in refused.stderr) == (2, True), refused.stderr


def test_the_server_of_the_other_commands_is_asked_if_none_is_named(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "SERVER", server.url)
    assert run("list", HEATSINK_TOKEN=TOKEN).exit_code == 0
    assert run("list", "--queue", "redis://127.0.0.1:1").exit_code == 1


def test_a_tenant_is_paused_and_limits_are_shown(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text(json.dumps({"account": "acme", "takes_s": 0.0}) + "\n")
    order = ("--id", "waits", "--tenant", "ada", "--delay", "3", "--no-wait")

    def changed(value: str) -> None:
        words = ("settings", "set", "bulk.paused_tenants.ada", value, "--reason", "a quarrel")
        flags = ("--server", server.url, "--token", ADMIN)
        assert CliRunner().invoke(main, [*words, *flags]).exit_code == 0

    changed("true")
    assert asked(server, "submit", "mail", str(file), *order).exit_code == 0
    status = ("status", "waits", "--json")
    until(lambda: "paused" in json.loads(asked(server, *status).stdout)["reason"])
    shown = asked(server, "controls").stdout
    assert "smtp   at most 2 running per account" in shown
    [line] = [line for line in shown.splitlines() if "paused_tenants" in line]
    assert line.startswith("bulk.paused_tenants.ada  true")
    assert line.endswith("a quarrel")
    setting = ("bulk.limits.smtp", "--server", server.url, "--token", ADMIN)
    words = ("settings", "set", *setting, "1, 9/s", "--reason", "their mail server is slow")
    assert CliRunner().invoke(main, words).exit_code == 0
    allows = "smtp   at most 1 running, 9/s per account (changed)"
    until(lambda: allows in asked(server, "controls").stdout)
    assert CliRunner().invoke(main, ("settings", "unset", *setting)).exit_code == 0
    changed("false")
    until(lambda: json.loads(asked(server, *status).stdout)["state"] == "done")


BAD_LINES = {
    "bad.jsonl": ('{"n": 1}\n{"n": \n', "bad.jsonl line 2 is not JSON"),
    "bad.csv": ("n,name\n1,right\n2\n", "bad.csv line 3 has more or fewer columns"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_file_with_a_bad_line_opens_no_batch(server: Served, tmp_path: Path, name: str) -> None:
    text, reason = BAD_LINES[name]
    (tmp_path / name).write_text(text)
    refused = asked(server, "submit", "picky", str(tmp_path / name), "--id", name)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert reason in refused.stderr
    assert asked(server, "status", name).exit_code == 1


def test_the_status_has_dates_and_no_empty_fields(server: Served, tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text('{"n": 1, "name": "right"}\n')
    asked(server, "submit", "picky", str(file), "--id", "ended, Zoë")
    said = asked(server, "status", "ended, Zoë").stdout
    assert "start" not in said
    assert "eta" not in said
    start = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
    order = ("--id", "later", "--at", start.isoformat(), "--no-wait")
    asked(server, "submit", "picky", str(file), *order)
    said = asked(server, "status", "later").stdout
    assert f"start      {start:%Y-%m-%d %H:%M:%S} UTC\n" in said
    asked(server, "cancel", "later")


WORKER = """
from heatsink.bulk import Actions

actions = Actions()


@actions.action("act")
async def act(item, context): ...
"""


def test_a_worker_beside_a_server_without_actions_runs_all_items(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(WORKER)
    queue = ("--queue", f"embedded:///{tmp_path}/heatsink-data/queue")
    with (
        serving(tmp_path) as served,
        serving(tmp_path, "good:actions", *queue, command="worker") as worker,
    ):
        assert worker.port
        file = tmp_path / "items.jsonl"
        file.write_text("1\n2\n3\n")
        for number in range(8):
            words = ("submit", "act", str(file), "--id", f"b{number}", "--one-partition")
            done = run(*words, "--server", served.url)
            assert "done: 3 done, 0 failed of 3" in done.stderr


class LosesConnections(BaseHTTPRequestHandler):
    """Does what it is asked, and closes the connection; or answers POST, and then nothing more."""

    def do_POST(self) -> None:
        assert isinstance(self.server, Lossy)
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while self.rfile.readline() != b"0\r\n":
                pass
        self.server.has_done.append(self.path)
        if self.server.answers:
            body = json.dumps({"id": "big", "items": 2, "state": "running"}).encode()
            self.send_response(202)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Write no log."""


class Lossy(ThreadingHTTPServer):
    def __init__(self, answers: bool) -> None:
        super().__init__(("127.0.0.1", 0), LosesConnections)
        self.answers = answers
        self.has_done: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def lossy(answers: bool) -> Iterator[Lossy]:
    with Lossy(answers) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_batch_is_said_to_be_accepted_though_its_server_is_lost_while_it_is_watched(
    tmp_path: Path,
) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text("1\n2\n")
    with lossy(answers=True) as server:
        said = run("submit", "slow", str(file), "--server", server.url)
    assert (said.exit_code, said.stdout) == (1, "big\n")
    assert "nothing was accepted" not in said.stderr
    assert "The batch big is accepted: workers go on with it" in said.stderr
    assert f"heatsink bulk status big --server {server.url}\n" in said.stderr


@pytest.mark.parametrize(
    ("order", "advice"),
    [
        ((), "To see whether the batch was accepted: heatsink bulk list --server http://"),
        (("--id", "mine"), "A retry with the same --id mine creates no second batch."),
    ],
)
def test_a_submission_whose_answer_is_lost_is_said_to_be_unknown(
    tmp_path: Path, order: tuple[str, ...], advice: str
) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text("1\n2\n")
    with lossy(answers=False) as server:
        said = run("submit", "slow", str(file), *order, "--server", server.url)
        assert server.has_done
    assert (said.exit_code, said.stdout) == (1, "")
    assert "accepted;" not in said.stderr
    assert "nothing was accepted" not in said.stderr
    assert "It is not known whether the server has done this" in said.stderr
    assert advice in said.stderr


def test_a_server_that_is_not_there_has_accepted_nothing(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    file.write_text("1\n2\n")
    with lossy(answers=False) as server:
        pass
    said = run("submit", "slow", str(file), "--server", server.url)
    assert "no server answers at " in said.stderr
    assert "; nothing was accepted" in said.stderr


def test_a_change_whose_answer_is_lost_is_said_to_be_unknown() -> None:
    with lossy(answers=False) as server:
        said = run("cancel", "big", "--server", server.url)
        assert server.has_done
    assert said.exit_code == 1
    assert "no server answers" not in said.stderr
    assert "It is not known whether the server has done this" in said.stderr


def test_a_change_that_was_made_is_not_said_to_have_failed_if_no_status_follows() -> None:
    with lossy(answers=True) as server:
        plain = run("cancel", "big", "--server", server.url)
        as_json = run("cancel", "big", "--json", "--server", server.url)
    assert (plain.exit_code, plain.stdout) == (0, "big: waiting items will not run\n")
    assert as_json.exit_code == 1
    assert "big: waiting items will not run, but no status: " in as_json.stderr
