"""The commands of operators, against a real server; and what `serve` is started with."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from heatsink import connect_sync
from heatsink.bulk import BulkSettings
from heatsink.cli import main
from heatsink.client.queue import connect_queue
from heatsink.client.urls import open_stores
from heatsink.errors import Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.server.commands.operator import _say, heat_table
from heatsink.testing.redis import RedisServer
from tests.processes import Served, serving
from tests.registry.test_registry import FOUNDING
from tests.servers import real
from tests.waiting import until

TOKENS = {"read": "reader-1", "operate": "writer-1", "admin": "boss-0001"}
PATIENCE_S = 60.0
FLAGS = [word for scope, token in TOKENS.items() for word in ("--token", f"{scope}:{token}")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ["--store", "memory://", "--bucket-units", "400", *FLAGS]
    with serving(tmp_path_factory.mktemp("served"), *flags) as served:
        yield served


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def asked(server: Served, *arguments: str, token: str = "boss-0001") -> Result:  # noqa: S107
    return run(*arguments, "--server", server.url, "--token", token)


def run_wide(server: Served, *arguments: str) -> Result:
    flags = ("--server", server.url, "--token", "boss-0001")
    return run(*arguments, *flags, COLUMNS="200")


def answered(server: Served, *arguments: str) -> Any:
    result = asked(server, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_key_is_pinned_explained_and_unpinned(server: Served) -> None:
    until(lambda: answered(server, "hot")["leads"])
    done = asked(server, "pin", "a/b #1", "3", "--reason", "launch [at noon]")
    assert (done.exit_code, done.stdout) == (
        0,
        "a/b #1: pinned to 3 buckets; in force within a second\n",
    )
    explained = answered(server, "explain", "a/b #1")
    assert explained["pin"] == {"value": 3, "reason": "launch [at noon]"}
    assert "why     pinned to 3: launch [at noon]" in asked(server, "explain", "a/b #1").stdout
    assert "pinned to 3 buckets  launch [at noon]" in run_wide(server, "decisions").stdout
    assert answered(server, "decisions")[-1]["subject"] == {"kind": "key", "name": "a/b #1"}
    subject = {"kind": "key", "name": "a/b #1"}
    unpinned = {"subject": subject, "value": None, "nobody_leads": None, "changed": True}
    assert answered(server, "unpin", "a/b #1") == unpinned
    assert answered(server, "unpin", "a/b #1") == {**unpinned, "changed": False}
    assert asked(server, "unpin", "a/b #l").stdout == "a/b #l: there is no pin to remove\n"
    assert answered(server, "explain", "a/b #1")["pin"] is None


def test_explain_prints_what_python_prints(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", f"sqlite:///{tmp_path}/same.db") as served:
        with connect_sync(f"sqlite:///{tmp_path}/same.db", coordinate=False) as hs:
            hs.pin("conv", buckets=3, reason="launch")
            until(lambda: hs.explain("conv").buckets == 3)
            until(lambda: hs.explain("conv").leader)
            mine = str(hs.explain("conv")).splitlines()
        printed = run("explain", "conv", "--server", served.url).stdout.splitlines()
    heat = "  heat    "  # the leader knows it, this process need not
    assert [line for line in printed if not line.startswith(heat)] == [
        line for line in mine if not line.startswith(heat)
    ]
    assert printed[0] == "conv: 3 buckets now (pinned)"
    assert "  reads   newest page 3 queries, everything 4 partitions" in printed


def test_nothing_in_a_key_or_a_reason_steers_the_terminal(server: Served) -> None:
    until(lambda: answered(server, "hot")["leads"])
    key, reason = "odd\x1b[2K\u202e", "launch\x1b]0;x\x07\u2028forged"
    said = [asked(server, "pin", key, "3", "--reason", reason).stdout]
    until(lambda: answered(server, "explain", key)["buckets"] == 3)
    said += [asked(server, "explain", key).stdout, run_wide(server, "decisions").stdout]
    said += [asked(server, "unpin", key).stdout]
    assert all("odd\\x1b[2K\\u202e" in text for text in said)
    assert all("launch\\x1b]0;x\\x07\\u2028forged" in text for text in said[1:3])
    assert [line for text in said for line in text.split("\n") if not line.isprintable()] == []


def test_decisions_that_are_followed_are_lines_of_printable_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = {
        "time": "2026-01-01T00:00:00Z",
        "subject": {"kind": "key", "name": "a\x1b[2K"},
        "setting": "buckets",
        "words": "buckets withdrawn",
    }
    _say({**line, "value": None, "reason": "no\nforged"}, as_json=False)
    said = capsys.readouterr().out
    assert said == "2026-01-01 00:00:00 a\\x1b[2K: buckets withdrawn (no\\nforged)\n"


def test_a_batch_that_no_worker_can_run_says_so_in_every_view(server: Served) -> None:
    headers = {"authorization": "Bearer boss-0001"}
    made = httpx.post(f"{server.url}/v1/bulk/tag", json=[1], headers=headers).json()
    why = "waiting: no worker has action 'tag'"
    until(lambda: why in " ".join(run_wide(server, "top").stdout.split()))
    for path in ("", f"/{made['id']}"):
        answer = httpx.get(f"{server.url}/v1/bulk{path}", headers=headers)
        assert f'"reason":"{why}"' in answer.text
    httpx.post(f"{server.url}/v1/bulk/{made['id']}/cancel", headers=headers)


def test_hot_keys_and_the_whole_picture(server: Served) -> None:
    until(lambda: answered(server, "hot")["leads"])
    until(lambda: answered(server, "hot")["window"] is not None)
    assert answered(server, "hot")["bucket_units_s"] == 400
    until(lambda: "No key is hot" in asked(server, "hot").stdout)
    bounded = "heat    too cold to be reported: at most"
    until(lambda: bounded in asked(server, "explain", "cold").stdout)
    seen = asked(server, "top", "--once")
    assert seen.exit_code == 0
    for title in ("Hot keys", "Queue partitions", "Batches in progress", "Decisions"):
        assert title in seen.stdout
    lines = [
        json.loads(line)
        for line in asked(server, "top", "--once", "--json").stdout.split("\n")[:-1]
    ]
    assert {name for line in lines for name in line} >= {"status", "heat", "partitions"}


def test_a_server_that_does_not_know_the_heat_says_who_does() -> None:
    unknown: dict[str, Any] = {
        "window": None,
        "leads": False,
        "leader": "boss:1",
        "keys": [],
        "unreported_s": None,
        "nobody_leads": None,
    }
    assert heat_table(unknown) == "Heat is not known here: ask the leader, boss:1."
    assert heat_table({**unknown, "leads": True}) == (
        "Heat is not known yet: the first report of heat comes a second or two after the start, or "
        "is late."
    )
    vacancy = "no leader since 2026-01-01 00:00:00 UTC (9 s ago)"
    vacant = heat_table({**unknown, "nobody_leads": vacancy})
    assert str(vacant).startswith(f"Heat is not known: {vacancy}. Start `heatsink coordinator`")
    late = {**unknown, "window": "2026-01-01T00:00:00Z"}
    assert heat_table(late) == (
        "Heat is not known: reports of heat are missing or late; ask the leader, boss:1."
    )


@pytest.mark.parametrize(
    ("arguments", "complaint", "code"),
    [
        (("hot", "--server", "ftp://x"), "server must be a URL like", 2),
        (("hot", "--server", "http://127.0.0.1:1"), "start `heatsink serve`", 1),
        (("explain", ""), "key must not be empty", 2),
        (("pin", "k", "9999", "--reason", "x"), "buckets must be", 2),
    ],
)
def test_a_mistake_is_one_line(
    server: Served, arguments: tuple[str, ...], complaint: str, code: int
) -> None:
    environment = {"HEATSINK_TOKEN": "boss-0001", "HEATSINK_SERVER": server.url}
    result = run(*arguments, **environment)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_token_of_too_small_a_scope(server: Served) -> None:
    refused = asked(server, "unpin", "k", token="reader-1")  # noqa: S106
    assert refused.exit_code == 2
    assert "needs the scope admin" in refused.stderr
    assert httpx.get(server.url + "/v1/heat").status_code == 401


# -- the doctor ------------------------------------------------------------------------------


def findings(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = run("doctor", "--json", *arguments)
    return result.exit_code, {each["what"]: each for each in json.loads(result.stdout)}


def test_the_doctor_finds_a_healthy_deployment(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with serving(tmp_path, "--data", "data"):
        until(lambda: findings("--data", data)[1]["leader"]["state"] == "ok")
        code, found = findings("--data", data)
    assert code == 0
    assert {each["state"] for each in found.values()} == {"ok"}, found
    assert set(found) == {"permissions", "disk", "store", "clock", "leader", "queue"}
    until(
        lambda: "no process uses the store now" in findings("--data", data)[1]["leader"]["detail"]
    )
    code, found = findings("--data", data)
    assert (code, found["leader"]["state"], found["leader"]["cure"]) == (0, "ok", "")
    (tmp_path / "data").chmod(0o755)
    _, found = findings("--data", str(tmp_path / "data"))
    assert found["permissions"]["cure"] == f"chmod 700 {tmp_path / 'data'}"


def test_the_doctor_says_what_is_wrong_and_the_cure(tmp_path: Path) -> None:
    code, found = findings("--data", str(tmp_path / "data"))
    assert (code, found["data"]["cure"]) == (0, "heatsink serve creates it")
    wrong = f"sqlite:///{tmp_path}/none.db"
    code, found = findings("--store", wrong, "--queue", "redis://127.0.0.1:1?x=1")
    assert code == 1
    assert found["store"]["state"] == found["queue"]["state"] == "wrong"
    code, found = findings(
        "--store", wrong, "--queue", "memory://", "--news", "redis://127.0.0.1:1"
    )
    assert (found["news"]["state"], found["queue"]["state"]) == ("wrong", "ok")
    assert run("doctor", "--store", wrong).exit_code == 1


def test_a_dead_redis_for_news_is_logged_and_found_by_the_doctor(tmp_path: Path) -> None:
    with serving(tmp_path, "--news", "redis://127.0.0.1:1") as served:
        until(lambda: httpx.get(f"{served.url}/v1/status").json()["news_lost"])
        found = json.loads(run("doctor", "--json", HEATSINK_SERVER=served.url).stdout)
        assert httpx.get(f"{served.url}/readyz").json()["ready"]
    (news,) = [finding for finding in found if finding["what"] == "news"]
    assert news["state"] == "warning"
    assert "no answer for" in news["detail"]
    assert "--news" in news["cure"]


def test_the_doctor_starts_no_queue_beside_a_store_that_is_not_there(tmp_path: Path) -> None:
    for flags in (("--store", f"sqlite:///{tmp_path}/none.db"), ("--data", str(tmp_path))):
        code, found = findings(*flags)
        assert (code, found["queue"]["state"]) == (1, "warning")
        assert "not checked" in found["queue"]["detail"]
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_makes_no_queue_that_is_not_there(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    with connect_sync(store):
        pass
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.iterdir())
    code, found = findings("--store", store)
    assert (code, found["queue"]["state"]) == (0, "ok")
    assert f"none in {tmp_path}/x.db-queue" in found["queue"]["detail"]
    for name in ("none", "empty"):
        code, found = findings("--store", store, "--queue", f"embedded:///{tmp_path}/{name}")
        assert (code, found["queue"]["state"]) == (0, "warning")
    assert sorted(tmp_path.iterdir()) == before
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_doctor_writes_nothing_into_a_queue(tmp_path: Path) -> None:
    """Not even how many partitions it has: the first process that uses the queue says that."""
    with real(lambda: RedisServer(append_only=True)) as redis:
        flags = ("--data", str(tmp_path / "none"), "--queue", redis.url)
        code, found = findings(*flags)
        assert (code, found["queue"]["state"]) == (0, "ok")
        assert found["queue"]["detail"] == "durable, no partitions; no worker runs"
        assert redis.command("DBSIZE") == "0"


def test_the_doctor_says_which_actions_workers_have_and_lack(tmp_path: Path) -> None:
    with real(lambda: RedisServer(append_only=True)) as redis:

        async def join(*actions: str) -> None:
            async with connect_queue(redis.url, BulkSettings(durability="relaxed")) as queue:
                await queue.stores.fleet.join("worker", actions, 600_000)

        def told() -> tuple[str, str]:
            _, found = findings("--data", str(tmp_path / "none"), "--queue", redis.url)
            return found["queue"]["state"], found["queue"]["detail"].partition("; ")[2]

        asyncio.run(join("heatsink.next", "heatsink.plain/worker"))
        assert told() == ("ok", "workers run built-in actions only")
        asyncio.run(join("mail", "push"))
        assert told() == ("ok", "workers run mail, push")
        asyncio.run(join("heatsink.lacks/3/push"))
        assert told() == ("warning", "workers run mail, push; some of them lack push")


def test_the_doctor_looks_at_the_queue_and_the_news_without_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, found = findings("--queue", "memory://", "--news", "redis://127.0.0.1:1")
    assert {name: one["state"] for name, one in found.items()} == {
        "data": "warning",
        "queue": "ok",
        "news": "wrong",
    }
    assert code == 1


def test_the_doctor_compares_maxclients_with_the_fleet(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/fleet.db"

    async def count(servers: int) -> None:
        stores = open_stores(store, SystemClock())
        await stores.open()
        meta = (await stores.registry.found(FOUNDING)).meta
        led = await stores.lease.lead(meta, "leader", 0)
        await stores.lease.beat(led.term, servers, 0)
        await stores.close()

    with real(lambda: RedisServer(options={"maxclients": "200"})) as redis:
        for servers, state in ((70, "ok"), (80, "warning")):
            asyncio.run(count(servers))
            _, found = findings("--store", store, "--news", redis.url)
            assert found["news"]["state"] == state, servers
    assert found["news"]["detail"] == "maxclients of the Redis is 200, too few for 80 servers"
    assert "set maxclients to 210 or more" in found["news"]["cure"]


def test_the_doctor_calls_a_new_table_new_and_a_full_disk_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    with serving(tmp_path, command="dynamo") as engine:
        url = f"dynamodb://messages?endpoint={engine.url}"
        assert run("table", "create", url).exit_code == 0
        code, found = findings("--store", url, "--queue", "memory://")
    assert (code, found["store"]["state"]) == (0, "warning")
    assert "no process has used this store yet" in found["store"]["detail"]
    assert f"heatsink serve --store '{url}'" in found["store"]["cure"]

    async def full(_: object) -> None:
        raise Unavailable("database or disk is full: free space on its disk")

    with connect_sync(f"sqlite:///{tmp_path}/x.db", coordinate=False):
        pass
    monkeypatch.setattr("heatsink.stores.sqlite.registry.SqliteRegistry.meta", full)
    code, found = findings("--store", f"sqlite:///{tmp_path}/x.db", "--queue", "memory://")
    assert (code, found["store"]["state"]) == (1, "wrong")
    assert "new" not in found["store"]["cure"]


def test_the_doctor_closes_what_it_opened() -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    command = (sys.executable, "-m", "heatsink", "doctor", "--store")
    url = f"dynamodb://none?endpoint={nowhere}"
    done = subprocess.run([*command, url], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "cannot connect to DynamoDB" in " ".join(done.stdout.split())


def test_the_doctor_cuts_nothing_and_speaks_of_flags(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 20) / "data"
    deep.mkdir(parents=True, mode=0o755)
    shown = "".join(run("doctor", "--data", str(deep)).stdout.split())
    assert f"→chmod700{deep}" in shown
    _, found = findings("--store", "dynamodb://x", "--news", "nonsense")
    assert found["store"]["detail"].startswith("--store names the table 'x', but a DynamoDB")
    assert found["news"]["detail"].startswith("--news must be a URL")
    assert found["queue"]["cure"] == "for bulk actions and timelines: --queue redis://host:6379"
    _, found = findings("--store", "memory://", "--queue", "nonsense")
    assert found["queue"]["detail"].startswith("--queue must be a URL")


# -- settings of serve -----------------------------------------------------------------------


def in_force(*flags: str, **environment: str) -> dict[str, tuple[Any, str]]:
    result = run("config", "--json", *flags, **environment)
    assert result.exit_code == 0, result.stderr
    return {line["setting"]: (line["value"], line["from"]) for line in json.loads(result.stdout)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_come_before_variables_and_those_before_the_file(here: Path) -> None:
    (here / "heatsink.toml").write_text(
        '[serve]\nport = 1\nhost = "::1"\ndata = "there"\ntoken = ["read:from-a-file"]\n'
        "[worker]\nworkers = 3\n"
    )
    environment = {"HEATSINK_SERVE_PORT": "2", "HEATSINK_SERVE_HOST": "localhost"}
    environment["HEATSINK_SERVE_BUCKET_UNITS"] = "80"
    found = in_force("--port", "3", **environment)
    assert found["port"] == (3, "flag")
    assert found["host"] == ("localhost", "environment")
    assert found["data"] == ("there", "file")
    assert found["ids"] == ("uuid7", "default")
    assert found["bucket-units"] == (80, "environment")
    assert found["token"] == (["read:…"], "file"), "no secret is printed"


def test_another_file_may_be_named(here: Path) -> None:
    (here / "mine.toml").write_text('port = 7\n"no-worker" = true\n')
    refused = run("config", "--config", "mine.toml")
    assert refused.exit_code == 2
    assert "mine.toml has 'no_worker', which" in refused.stderr
    (here / "mine.toml").write_text("port = 7\nworker = false\n")
    found = in_force("--config", "mine.toml")
    assert (found["port"], found["worker"]) == ((7, "file"), (False, "file"))


@pytest.mark.server("a command listens before it connects")
@pytest.mark.parametrize(
    ("flags", "complaint", "code"),
    [
        (("--host", "0.0.0.0"), "reachable from outside", 2),  # noqa: S104
        (("--host", "999.1.1.1"), "host '999.1.1.1' is no such address", 2),
        (("--actions", "nowhere:actions"), "no module 'nowhere'", 2),
        (("--actions", "acts.py:actions"), "without .py, as in acts:actions", 2),
        (("--store", "nonsense://"), "names no store", 2),
        (("--token", "secret"), "token must be SCOPE:TOKEN", 2),
        (("--limit", "speed=1"), "limit 'speed' must be one of", 2),
        (("--limit", "requests=x"), "must be a number", 2),
        (("--limit", "request_s=0"), "request_s must be", 2),
        (("--fresh-for", "-1"), "--fresh-for", 2),
        (("--bucket-units", "0"), "--bucket-units", 2),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_wrong_setting_is_refused(flags: tuple[str, ...], complaint: str, code: int) -> None:
    result = run("serve", "--port", "0", *flags)
    assert result.exit_code == code
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr
    assert code == 2 or len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "\udcff"),
        ("pin", "k", "3", "--reason", "\udcff"),
        ("hot", "--token", "secret\nword"),
        ("hot", "--token", "€"),
        ("hot", "--server", "http://[::1"),
    ],
)
def test_what_cannot_be_sent_is_an_error_in_one_line(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert "secret" not in result.output
    assert result.output.count("\n") <= 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("data = 5", "data must be a text"),
        ('data = ["a"]', "data must be one text or number"),
        ("host = {a = 1}", "host must be one text or number"),
        ("port = true", "port must be one text or number"),
        ("port = 1.5", "port must be a whole number"),
        ('token = "x"', "must be a list"),
    ],
)
def test_a_value_of_the_wrong_kind_in_a_file_is_refused(
    tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(f"[serve]\n{line}\n")
    result = run("config", "--config", str(file))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_the_doctor_says_first_what_it_looks_at(here: Path) -> None:
    def first(*flags: str) -> str:
        return run("doctor", *flags).stdout.splitlines()[0]

    server = "To check a running server: --server http://127.0.0.1:8321"
    assert first() == f"Checking the folder {here / 'heatsink-data'}. {server}"
    assert first("--store", "sqlite:///x.db") == f"Checking sqlite:///x.db. {server}"
    assert first("--server", "http://127.0.0.1:1") == "Checking http://127.0.0.1:1"
