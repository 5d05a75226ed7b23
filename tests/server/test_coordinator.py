from __future__ import annotations

import asyncio
import re
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

import heatsink
from heatsink.cli import main
from heatsink.client.status import Status
from heatsink.errors import InvalidSetting
from heatsink.primitives.ids import IdScheme, Ulid, Uuid7
from heatsink.server.api.requests import token_of
from heatsink.server.commands import coordinator
from heatsink.server.commands.coordinator import run_coordinator, status_app
from heatsink.server.running import until_signal
from heatsink.server.shell import Endpoint
from heatsink.stores.embedded import free_port

STATUS = Status(
    name="a",
    leads=True,
    term=3,
    version=17,
    horizon_s=0.4,
    servers=5,
    spread_keys=2,
    extra_buckets=6,
    pinned_keys=1,
)
TOKEN = "secret"  # noqa: S105
STALE = Status("b", False, 3, 17, -0.1, 5, 2, 6, 1)


async def ask(
    path: str, status: Status = STATUS, token: str | None = None, authorization: str | None = None
) -> httpx.Response:
    guard = Endpoint("127.0.0.1", 1, (token_of("read", token),) if token else ()).guard
    transport = httpx.ASGITransport(status_app(lambda: status, guard))
    headers = {} if authorization is None else {"Authorization": authorization}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path, headers=headers)


async def test_it_is_alive_while_it_answers() -> None:
    for status in (STATUS, STALE):
        answer = await ask("/healthz", status)
        assert (answer.status_code, answer.text) == (200, "ok\n")


async def test_it_is_ready_while_its_view_is_fresh() -> None:
    ready = await ask("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {"ready": True, "leads": True, "version": 17}
    stale = await ask("/readyz", STALE)
    assert stale.status_code == 503
    assert stale.json()["ready"] is False


async def test_prometheus_can_read_the_metrics() -> None:
    answer = await ask("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    for line in ("heatsink_leads 1.0", "heatsink_term 3.0", "heatsink_horizon_s 0.4"):
        assert line in lines
    assert "heatsink_extra_buckets 6.0" in lines
    assert not [line for line in lines if "{" in line], "no key is ever a label"


async def test_metrics_follow_the_status() -> None:
    assert "heatsink_leads 0.0" in (await ask("/metrics", STALE)).text


@pytest.mark.parametrize("given", [None, "", "Bearer wrong", "Bearer ", "Basic c2VjcmV0"])
async def test_metrics_need_the_token_if_there_is_one(given: str | None) -> None:
    answer = await ask("/metrics", token=TOKEN, authorization=given)
    assert answer.status_code == 401
    assert "heatsink_" not in answer.text
    assert ("unknown token" in answer.text) is (given == "Bearer wrong")
    for path in ("/healthz", "/readyz"):
        assert (await ask(path, token=TOKEN)).status_code == 200


async def test_the_token_opens_the_metrics() -> None:
    answer = await ask("/metrics", token=TOKEN, authorization="Bearer secret")
    assert answer.status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])  # noqa: S104
def test_beyond_this_machine_a_token_is_needed(host: str) -> None:
    with pytest.raises(InvalidSetting, match="--token"):
        Endpoint(host, 1)
    Endpoint(host, 1, (token_of("read", "secret"),))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_none(host: str) -> None:
    Endpoint(host, 1)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


@pytest.mark.parametrize("token", [[], ["--token", ""]])
def test_the_command_refuses_an_open_address_in_one_line(token: list[str]) -> None:
    result = run("coordinator", "--store", "sqlite:///x.db", "--host", "0.0.0.0", *token)  # noqa: S104
    assert result.exit_code == 2
    assert result.stderr.startswith("heatsink: host '0.0.0.0' is reachable from outside")
    assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a coordinator was started with, instead of starting it."""
    seen: dict[str, Any] = {}

    def coordinate(store: str, endpoint: Endpoint, **settings: Any) -> None:
        seen.update(store=store, endpoint=endpoint, **settings)

    monkeypatch.setattr(coordinator, "coordinate", coordinate)
    return seen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "coordinator.toml"
    made.write_text(
        'store = "sqlite:///file.db"\nport = 1111\nbucket-units = 50\ncool_down = 9.0\n'
    )
    return made


def test_the_defaults(started: dict[str, Any]) -> None:
    assert run("coordinator", "--store", "sqlite:///x.db").exit_code == 0
    assert started["endpoint"] == Endpoint("127.0.0.1", 8323)
    assert started["rules"] == heatsink.BucketRules()


def test_a_file_is_read(started: dict[str, Any], file: Path) -> None:
    assert run("coordinator", "--config", str(file)).exit_code == 0
    assert (started["store"], started["endpoint"].port) == ("sqlite:///file.db", 1111)
    assert started["rules"] == heatsink.BucketRules(bucket_units_s=50, cool_down_s=9.0)


def test_the_environment_outdoes_the_file(started: dict[str, Any], file: Path) -> None:
    environment = {
        "HEATSINK_COORDINATOR_STORE": "sqlite:///environment.db",
        "HEATSINK_COORDINATOR_TOKEN": "secret",
        "HEATSINK_COORDINATOR_BUCKET_UNITS": "60",
    }
    assert run("coordinator", "--config", str(file), **environment).exit_code == 0
    assert (started["store"], started["endpoint"].port) == ("sqlite:///environment.db", 1111)
    assert started["endpoint"].tokens == (token_of("read", "secret"),)
    assert started["rules"].bucket_units_s == 60


def test_flags_outdo_both(started: dict[str, Any], file: Path) -> None:
    flags = ["--config", str(file), "--store", "sqlite:///flag.db", "--port", "2222"]
    environment = {
        "HEATSINK_COORDINATOR_STORE": "sqlite:///environment.db",
        "HEATSINK_COORDINATOR_PORT": "3333",
    }
    assert run("coordinator", *flags, **environment).exit_code == 0
    assert (started["store"], started["endpoint"].port) == ("sqlite:///flag.db", 2222)


def test_the_file_may_be_named_in_the_environment(started: dict[str, Any], file: Path) -> None:
    assert run("coordinator", HEATSINK_COORDINATOR_CONFIG=str(file)).exit_code == 0
    assert started["endpoint"].port == 1111


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            'stroe = "memory://"\n',
            "does not know: did you mean 'store'?",
        ),
        ("[coordinatr]\nport = 1\n", "unknown table [coordinatr]: did you mean 'coordinator'?"),
        ("port = \n", "cannot be read"),
    ],
    ids=["a typo", "a section", "not TOML"],
)
def test_a_wrong_file_is_refused_by_name(
    started: dict[str, Any], tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    result = run("coordinator", "--store", "sqlite:///x.db", "--config", str(file))
    assert result.exit_code == 2
    assert complaint in result.stderr.replace("\n", " ")
    assert not started


def test_a_store_must_be_named() -> None:
    result = run("coordinator")
    assert result.exit_code == 2
    assert "--store" in result.stderr


async def test_it_gives_the_lead_back_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    client = heatsink.connect(url)

    async def serve(_: object, __: object) -> None:
        while not client.status().leads:
            await asyncio.sleep(0.02)

    monkeypatch.setattr("uvicorn.Server.serve", serve)
    with until_signal() as ending:
        await run_coordinator(client, [], Endpoint("127.0.0.1", 0), ending)
    with pytest.raises(heatsink.errors.Closed):
        client.status()
    async with heatsink.connect(url, coordinate=False) as other:
        assert (await other.parts.stores.registry.meta()).meta.leader == ""


async def until_healthy(port: int) -> None:
    """Since then it listens to signals too."""
    async with httpx.AsyncClient() as client:
        while True:
            with suppress(httpx.ConnectError):
                await client.get(f"http://127.0.0.1:{port}/healthz", timeout=30)
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "ids"), [(signal.SIGTERM, Uuid7()), (signal.SIGINT, Ulid())], ids=str
)
async def test_a_signal_ends_it_and_gives_the_lead_back(
    tmp_path: Path, number: signal.Signals, ids: IdScheme
) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    async with heatsink.connect(url, coordinate=False, ids=ids) as hs:
        port = free_port()
        command = [sys.executable, "-m", "heatsink", "coordinator", "--store", url]
        command += ["--port", str(port)]
        process = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
        await until_healthy(port)
        while not (await hs.parts.stores.registry.meta()).meta.leader:
            await asyncio.sleep(0.05)
        process.send_signal(number)
        _, said = await process.communicate()
        assert process.returncode == 0
        assert (await hs.parts.stores.registry.meta()).meta.leader == ""
    assert re.search(r"stands by; /healthz, .* are at http://127\.0\.0\.1:\d\d+", said.decode())
    assert "stopped; if this coordinator led, another one can lead now" in said.decode()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite:///chat.db", "names no table"),
        ("messages", "names no table"),
        ("dynamodb://[messages", "cannot be read"),
        ("dynamodb://messages", "needs a region"),
        ("dynamodb://?region=eu-west-1", "names no DynamoDB table"),
        (
            "dynamodb://m?region=eu-west-1",
            "3 to 255 characters of A-Z",
        ),
        ("dynamodb://messages?regoin=eu-west-1", "no option 'regoin'"),
        ("dynamodb://messages?endpoint=ftp://x", "endpoint must be http"),
    ],
)
def test_a_wrong_table_url_is_one_clear_line(url: str, complaint: str) -> None:
    assert_refused(run("table", "create", url), complaint, code=2)


def test_an_engine_that_is_not_there_is_one_clear_line() -> None:
    result = run("table", "create", "dynamodb://messages?endpoint=http://127.0.0.1:1")
    assert_refused(result, "cannot connect to DynamoDB", code=1)


def assert_refused(result: Result, complaint: str, code: int) -> None:
    assert result.exit_code == code
    assert result.stderr.startswith("heatsink: ")
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1
