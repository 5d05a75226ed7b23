"""Commands that cannot do what they are told: one line that says why and what to do.

Exit code 1 if it may go well another time; 2 if the command itself is wrong. A wrong value of a
flag is refused by the flag's name.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from email.message import Message
from io import BytesIO
from pathlib import Path
from ssl import SSLError
from typing import Any
from urllib.error import HTTPError, URLError

import click
import pytest
from click.core import ParameterSource
from click.testing import CliRunner, Result

import heatsink
from heatsink.cli import main
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import InvalidBody, InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.ids import IdScheme, Snowflake, Ulid, Uuid7
from heatsink.server.commands.bulk import same_queue_options, submit
from heatsink.server.commands.coordinator import ids_of
from heatsink.server.commands.item_files import read_items
from heatsink.server.commands.worker import find_actions
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials
from heatsink.stores.embedded import free_port
from tests.processes import PROGRAM


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


async def run_elsewhere(*arguments: str) -> Result:
    """A command runs a loop of its own."""
    return await asyncio.to_thread(run, *arguments)


def said(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("heatsink: ")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


async def test_the_partitions_of_a_running_engine_are_listed() -> None:
    async with running_engine(EngineSettings(port=0, partitions=3), SystemClock()) as url:
        port = url.rpartition(":")[2]
        none = await run_elsewhere("dynamo", "--port", port, "--partitions")
        assert "no tables yet" in none.output
        made = await run_elsewhere("table", "create", f"dynamodb://chat?endpoint={url}")
        assert made.exit_code == 0, made.output
        listed = await run_elsewhere("dynamo", "--port", port, "--partitions")
    assert listed.exit_code == 0
    assert "chat: 3 partitions, version 1, throttled: none" in listed.output
    assert listed.output.count("33.33%") == 3


def test_an_engine_that_does_not_run_cannot_list_its_partitions() -> None:
    line = said(run("dynamo", "--port", str(free_port()), "--partitions"))
    assert "no emulator answers" in line
    assert "`heatsink dynamo`" in line


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield str(other.getsockname()[1])


@pytest.mark.server("a command listens")
def test_a_coordinator_on_a_taken_port_says_so(taken_port: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    result = run("coordinator", "--store", store, "--port", taken_port)
    assert f"port {taken_port} is in use: choose another with --port" in said(result)
    assert not (tmp_path / "x.db").exists()


@pytest.mark.server("a command listens")
def test_a_coordinator_on_a_foreign_address_says_so(tmp_path: Path) -> None:
    address = ["--host", "192.0.2.1", "--token", "secret"]
    result = run("coordinator", "--store", f"sqlite:///{tmp_path}/x.db", *address)
    assert "cannot listen on '192.0.2.1'" in said(result)
    assert "--host" in result.stderr


@pytest.mark.server("a command listens")
def test_an_engine_on_a_taken_port_does_not_say_that_it_listens(taken_port: str) -> None:
    line = said(run("dynamo", "--port", taken_port))
    assert f"port {taken_port} is in use: choose another with --port" in line


def test_a_coordinator_of_a_store_that_nobody_shares_is_refused() -> None:
    assert "--store" in said(run("coordinator", "--store", "memory://"), code=2)


def test_a_configuration_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes('name = "Zürich"\n'.encode("latin-1"))
    result = run("coordinator", "--config", str(file))
    assert result.exit_code == 2
    assert "cannot be read" in result.stderr.replace("\n", " ")
    assert "utf-8" in result.stderr


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [
        ("dynamo", "--burst-seconds", "-1"),
        ("dynamo", "--replica-lag", "-1"),
        ("dynamo", "--latency", "nan"),
        ("dynamo", "--split-after", "-1"),
        ("dynamo", "--merge-after", "soon"),
        ("dynamo", "--write-limit", "0"),
        ("dynamo", "--read-limit", "inf"),
        ("dynamo", "--partitions", "1000000000"),
        ("dynamo", "--port", "70000"),
        ("coordinator", "--bucket-units", "0"),
        ("coordinator", "--cool-down", "-1"),
        ("coordinator", "--port", "70000"),
        ("worker", "--workers", "0"),
        ("worker", "--lease", "0"),
        ("worker", "--port", "70000"),
        ("serve", "--partitions", "0"),
        ("hot", "--limit", "0"),
        ("decisions", "--limit", "1001"),
        ("bulk list", "--limit", "0"),
        ("bulk submit", "--priority", "9999"),
        ("lab hot-key", "--peak", "1000000000"),
        ("lab scaling", "--items", "1000000000"),
    ],
)
def test_a_wrong_value_is_refused_by_its_flag(command: str, flag: str, value: str) -> None:
    store = ["--store", "sqlite:///x.db"] if command == "coordinator" else []
    result = run(*command.split(), *store, flag, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}'" in result.stderr


@pytest.mark.parametrize("spec", ["actions", "x:", ":x", ".x:y", ":"])
def test_actions_that_are_not_named_as_they_should_be(spec: str) -> None:
    line = said(run("worker", spec, "--queue", "memory://"), code=2)
    assert f"actions must be MODULE:ACTIONS (myapp:actions), not '{spec}'" in line


NOBODY = "127.0.0.1:1"
NO_ENGINE = f"dynamodb://messages?endpoint=http://{NOBODY}"


@pytest.mark.server("a command listens")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("fsck nonsense://x", 2),
        ("fsck sqlite:///absent.db", 2),
        (f"fsck {NO_ENGINE}", 1),
        ("table create dynamodb://messages", 2),
        (f"table create {NO_ENGINE}", 1),
        ("adopt sqlite:///absent.db chat", 2),
        (f"adopt {NO_ENGINE} chat", 1),
        (f"adopt {NO_ENGINE} c", 2),
        ("bench nonsense", 2),
        (f"bench {NO_ENGINE}", 1),
        ("coordinator --store sqlite:///x.db --news nonsense", 2),
        ("serve --store nonsense --port 0", 2),
        ("serve --store memory:// --host 0.0.0.0", 2),
        ("worker nomodule:actions --queue memory://", 2),
        ("plan absent.csv", 2),
        ("plan --write-capacity 5", 2),
        ("bulk list --queue nonsense", 2),
        (f"bulk list --queue redis://{NOBODY}", 1),
        ("bulk status x --queue memory://", 2),
        ("hot --server nonsense", 2),
        (f"hot --server http://{NOBODY}", 1),
        ("dynamo --port 1 --partitions", 1),
    ],
)
def test_the_exit_code_tells_a_wrong_command_from_one_that_may_succeed_later(
    words: str, code: int
) -> None:
    said(run(*words.split()), code)


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        *(("serve", flag) for flag in ("--data", "--store", "--queue", "--news", "--actions")),
        *(("doctor", flag) for flag in ("--data", "--store", "--queue", "--news")),
        ("serve", "--host"),
        ("coordinator", "--queue"),
        ("bulk list", "--queue"),
    ],
)
def test_an_empty_value_is_refused_by_its_flag(command: str, flag: str) -> None:
    for empty in ("", " "):
        result = run(*command.split(), flag, empty)
        assert result.exit_code == 2
        assert f"Invalid value for '{flag}': the value is empty" in result.stderr


def test_units_beyond_what_dynamodb_takes_are_refused_by_their_flag() -> None:
    result = run("table", "create", "dynamodb://x", "--write-units", "9" * 30)
    assert result.exit_code == 2
    assert "--write-units" in result.stderr


@pytest.fixture
async def endpoint() -> AsyncIterator[str]:
    async with running_engine(EngineSettings(port=0), SystemClock()) as endpoint:
        yield endpoint


async def make_other_table(endpoint: str, name: str) -> None:
    """A table of the user's own."""
    client = DynamoClient(endpoint, "us-east-1", FixedCredentials(), SystemClock())
    request = {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    }
    await client.call("CreateTable", request)
    await client.close()


async def test_a_table_that_exists_is_named_with_what_to_do(endpoint: str) -> None:
    url = f"dynamodb://messages?endpoint={endpoint}"
    assert (await run_elsewhere("table", "create", url)).exit_code == 0
    line = said(await run_elsewhere("table", "create", url))
    assert "'messages' exists already, and has Heatsink's keys: connect to it" in line
    await make_other_table(endpoint, "chat")
    line = said(await run_elsewhere("table", "create", f"dynamodb://chat?endpoint={endpoint}"))
    assert "'chat' exists already, and has other keys than Heatsink's" in line
    assert "name another" in line


async def test_more_units_than_a_table_may_have_are_one_line(endpoint: str) -> None:
    url = f"dynamodb://messages?endpoint={endpoint}"
    line = said(await run_elsewhere("table", "create", url, "--write-units", "20000"))
    assert "LimitExceededException" in line


async def test_a_table_that_does_not_exist_is_not_adopted(endpoint: str, tmp_path: Path) -> None:
    registry = f"dynamodb://heatsink?endpoint={endpoint}"
    await run_elsewhere("table", "create", registry)
    files = f"sqlite:///{tmp_path}/registry.db"
    for url in (registry, files):
        async with heatsink.connect(url):
            pass
    for table in ("chat", f"dynamodb://chat?endpoint={endpoint}"):
        line = said(await run_elsewhere("adopt", registry, table, "--complete"))
        assert "there is no table 'chat'" in line
    nowhere = said(await run_elsewhere("adopt", files, "chat"), code=2)
    assert "dynamodb://chat?region=" in nowhere
    await make_other_table(endpoint, "chat")
    elsewhere = f"dynamodb://chat?endpoint={endpoint}"
    for url, table in ((registry, "chat"), (registry, elsewhere), (files, elsewhere)):
        result = await run_elsewhere("adopt", url, table)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("chat: no program has declared this table")


@pytest.mark.parametrize("ids", [Uuid7(), Ulid(), Snowflake(epoch_ms=1_000)])
async def test_a_coordinator_learns_the_kind_of_ids_from_the_store(
    tmp_path: Path, endpoint: str, ids: IdScheme
) -> None:
    table = f"dynamodb://messages?endpoint={endpoint}"
    await run_elsewhere("table", "create", table)
    for url in (f"sqlite:///{tmp_path}/x.db", table):
        assert await ids_of(url, SystemClock()) == Uuid7(), "a new store"
        async with heatsink.connect(url, ids=ids):
            assert await ids_of(url, SystemClock()) == ids


@pytest.mark.parametrize(
    ("body", "said_by_python"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import nothing_here", "ModuleNotFoundError: No module named 'nothing_here'"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_actions_that_fail_on_import_are_answered_with_their_own_lines_only(
    body: str,
    said_by_python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "broken_app.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidSetting) as caught:
        find_actions("broken_app:actions")
    assert str(caught.value).startswith(
        f"the module 'broken_app' cannot be imported: {said_by_python}. Correct the module"
    )
    assert "broken_app.py" in caplog.text
    assert "/heatsink/server/" not in caplog.text
    assert "importlib" not in caplog.text


@pytest.mark.parametrize(
    ("words", "variable", "warning"),
    [
        (("config",), "HEATSINK_SERVE_PROT", "ignored here: did you mean HEATSINK_SERVE_PORT?"),
        (("config",), "HEATSINK_SEVRE_HOST", "ignored here: did you mean HEATSINK_SERVE_HOST?"),
        (("config",), "HEATSINK_STORE", "ignored here: did you mean HEATSINK_SERVE_STORE?"),
        (("config",), "HEATSINK_SERVE_XYZ", "ignored: the command has no such option"),
        (("hot",), "HEATSINK_TOKN", "ignored here: did you mean HEATSINK_TOKEN?"),
        (("bulk", "list"), "HEATSINK_BULK_LIST_QUEU", "did you mean HEATSINK_BULK_LIST_QUEUE?"),
        (("door",), "HEATSINK_DOOR_REGOIN", "did you mean HEATSINK_DOOR_REGION?"),
    ],
)
def test_a_variable_that_is_misspelt_is_noticed(
    words: tuple[str, ...], variable: str, warning: str
) -> None:
    wrong = ["--limit", "0"] if words == ("hot",) else []
    first = CliRunner(env={variable: "x"}).invoke(main, [*words, *wrong]).stderr.splitlines()[0]
    assert first.startswith(f"heatsink: the variable {variable} is ")
    assert first.endswith(warning)


@pytest.mark.parametrize(
    "variables",
    [
        {"HEATSINK_WORKER_QUEUE": "redis://other"},
        {"HEATSINK_TOKEN": "abc", "HEATSINK_SERVER": "http://other"},
        {"HEATSINK_PORT": "tcp://10.0.0.1:8321"},
        {"HEATSINK_STORE": "sqlite:///a.db", "HEATSINK_SERVE_STORE": "sqlite:///b.db"},
        {"HEATSINK_SERVE_HOST": "127.0.0.1", "HEATSINK_FULL_TESTS": "1"},
    ],
)
def test_a_variable_for_something_else_is_not(variables: dict[str, str]) -> None:
    assert CliRunner(env=variables).invoke(main, ["config"]).stderr == ""


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*PROGRAM, "config"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    line = "heatsink: the output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, line)


def test_a_closed_output_is_no_error() -> None:
    shell = ["sh", "-c", '"$@" >&-', "sh", *PROGRAM, "completion", "bash"]
    ended = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_usage_of_a_default_command_can_be_typed() -> None:
    assert " door serve [OPTIONS]" in run("door", "serve", "--help").stdout


def test_keys_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    words = ("door", "keys", "new", "app", "--scope", "chat", "--keys", f"{tmp_path}/none/keys")
    assert "cannot be written (No such file or directory): name another file with --keys" in said(
        run(*words), code=2
    )


def test_text_for_a_number_is_answered_without_clicks_own_words() -> None:
    said = CliRunner().invoke(main, ["serve", "--port", "abc"]).stderr
    assert said.endswith("Invalid value for '--port': 'abc' is not a valid integer.\n")


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("bulk", "places"), "Missing option '--queue'. Use redis://host:6379, or embedded:///"),
        (("coordinator",), "Missing option '--store'. Use the sqlite:// or dynamodb:// URL"),
        (("pin", "k", "4"), "Missing option '--reason'. Say why, as in --reason"),
    ],
)
def test_a_missing_option_is_answered_with_what_to_write(words: tuple[str, ...], cure: str) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, cure in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    "words", [("list",), ("status", "b"), ("submit", "tag", "items.csv"), ("cancel", "b")]
)
def test_a_command_does_not_create_a_queue_by_a_typo(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.csv").write_text("id\n1\n")
    line = said(run("bulk", *words, "--queue", "embedded:///wrogn/queue"))
    assert "there is no queue in wrogn/queue: check --queue" in line
    assert not (tmp_path / "wrogn").exists()
    assert "memory:// would end with this command" in said(
        run("bulk", *words, "--queue", "memory://"), code=2
    )


def test_a_wrong_value_is_blamed_on_its_source(tmp_path: Path) -> None:
    def blamed(*words: str, **variables: str) -> str:
        return CliRunner(env=variables).invoke(main, words).stderr.splitlines()[-1]

    wrong = "'abc' is not a valid integer."
    assert blamed("serve", HEATSINK_SERVE_PORT="abc") == (
        f"Error: Invalid value for the variable HEATSINK_SERVE_PORT: {wrong}"
    )
    assert blamed("serve", "--port", "abc", HEATSINK_SERVE_PORT="1") == (
        f"Error: Invalid value for '--port': {wrong}"
    )
    file = tmp_path / "mine.toml"
    file.write_text("[serve]\nport = 99999\n")
    assert f"Invalid value for 'port' in {file}: 99999 is not in" in blamed(
        "serve", "--config", str(file)
    )


@pytest.mark.parametrize(
    ("status", "flags", "complaint"),
    [
        (401, (), "the server needs a token: pass --token, or set HEATSINK_TOKEN"),
        (401, ("--token", "wrong-one"), "the server does not accept this token: check --token"),
        (403, ("--token", "wrong-one"), "the server answered 403: not for you"),
    ],
)
def test_a_missing_token_is_answered_with_the_flag(
    status: int, flags: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        body = BytesIO(b'{"detail": "not for you"}')
        raise HTTPError("http://here", status, "", Message(), body)

    monkeypatch.setattr("heatsink.server.commands.remote.urlopen", refuse)
    assert complaint in said(run("hot", *flags), code=2)


def test_tls_on_a_plain_port_is_answered_with_the_plain_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError(SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"))

    monkeypatch.setattr("heatsink.server.commands.remote.urlopen", refuse)
    line = said(run("hot", "--server", "https://localhost:8321"))
    assert "does not speak TLS" in line
    assert "use http://localhost:8321" in line


@pytest.mark.parametrize("words", [("get", "nope"), ("set", "nope", "1", "--reason", "why")])
def test_a_setting_that_does_not_exist_is_a_wrong_command(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    with heatsink.connect_sync(f"sqlite:///{tmp_path}/x.db"):
        pass
    line = said(run("settings", *words, "--store", f"sqlite:///{tmp_path}/x.db"), code=2)
    assert "there is no setting 'nope': `heatsink settings list`" in line


@pytest.mark.parametrize(
    "words",
    [
        ("settings", "get", "rules.shrink"),
        ("settings", "unset", "rules.shrink"),
        ("settings", "list"),
        ("decisions",),
    ],
)
def test_a_command_does_not_create_a_store_by_a_typo(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    line = said(run(*words, "--store", f"sqlite:///{tmp_path}/wrogn.db"), code=2)
    assert f"there is no database {tmp_path}/wrogn.db" in line
    assert list(tmp_path.iterdir()) == []


def test_a_worker_of_a_queue_that_nobody_shares_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lonely_app.py").write_text("from heatsink.bulk import Actions\na = Actions()\n")
    monkeypatch.chdir(tmp_path)
    line = said(run("worker", "lonely_app:a", "--queue", "memory://"), code=2)
    assert "memory:// is private to its process" in line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "is empty: its first line must name the columns"), ("a,b,a\n1,2,3\n", "'a' twice")],
)
def test_a_csv_file_without_a_usable_header_is_refused(
    text: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "items.csv").write_text(text)
    with pytest.raises(InvalidBody, match=complaint):
        list(read_items(tmp_path / "items.csv"))


@pytest.mark.parametrize(
    ("queue", "more", "expected"),
    [
        ("redis://host:6379", {}, "--queue redis://host:6379"),
        ("embedded:///my queue", {}, "--queue 'embedded:///my queue'"),
        (
            "redis://host",
            {"stage": "test", "legacy": True},
            "--queue redis://host --stage test --legacy",
        ),
        (
            "rediss://me:secret@host/2",
            {},
            "--queue rediss://host/2  # put the password into the URL",
        ),
    ],
)
def test_hints_name_the_queue_without_its_password(
    queue: str, more: dict[str, Any], expected: str
) -> None:
    with click.Context(submit) as context:
        shape = {"stage": "default", "legacy": False, **more}
        assert same_queue_options(queue=queue, **shape) == expected
        context.set_parameter_source("queue", ParameterSource.ENVIRONMENT)
        assert "--queue" not in same_queue_options(queue=queue, **shape)
