"""The installed wheel: each extra is enough for what the docs say, and errors name the extra."""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx
import pytest

from heatsink.testing.redis import RedisServer
from tests.planted import FULL
from tests.processes import Served, serving
from tests.servers import real

from .building import ROOT, RUN_S, Environment, build, find_uv

FEATURES = Path(__file__).parent / "features.py"
EXTRA = re.compile(r"pip install '\.\[(\w+)\]'")
LIST_TABLES = {"X-Amz-Target": "DynamoDB_20120810.ListTables"}
NEEDS = {  # which extra the error of a feature names
    "aws": "aws",
    "embedded": "local",
    "emulated_table": "dynamodb",
    "emulator": "local",
    "metrics": "metrics",
    "news": "redis",
    "queue": "redis",
    "redis_for_tests": "local",
    "tracing": "otel",
}
OFFERS = {  # what works with an extra, and packages of others that it takes
    "aws": (["aws", "emulated_table", "boto"], ["boto3"]),
    "dynamodb": (["emulated_table"], []),
    "metrics": (["metrics"], []),
    "otel": (["tracing"], []),
    "redis": (["news", "queue"], []),
    "server": (["embedded", "news", "queue"], []),
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("installed")
    return Environment(folder / "venv", build("wheel", ROOT, folder), find_uv())


def use(
    environment: Environment, folder: Path, *names: str, endpoint: str = "", redis: str = ""
) -> dict[str, str]:
    """What each feature said."""
    endpoint, redis = endpoint or "http://127.0.0.1:1", redis or "redis://127.0.0.1:1"
    done = environment.run("python", FEATURES, folder, endpoint, redis, *names, folder=folder)
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


def started(environment: Environment, folder: Path, command: str) -> AbstractContextManager[Served]:
    program = [str(environment.folder / "bin" / "heatsink")]
    return serving(folder, command=command, program=program, variables=environment.variables)


def test_without_an_extra_logs_work_and_each_error_names_the_one_extra(
    environment: Environment, tmp_path: Path
) -> None:
    environment.install("")
    said = use(environment, tmp_path, "stores", "web", *NEEDS)
    assert said.pop("stores") == "ok"
    assert "needs Starlette: pip install starlette" in said.pop("web")
    assert {name: EXTRA.findall(text) for name, text in said.items()} == {
        name: [extra] for name, extra in NEEDS.items()
    }
    for command in (["--help"], ["serve"], ["dynamo"]):
        done = environment.run("heatsink", *command, folder=tmp_path)
        assert done.returncode == 1
        assert EXTRA.findall(done.stderr) == ["server"]
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("extra", OFFERS if FULL else ["server"])
def test_an_extra_is_enough_for_its_features(
    environment: Environment, tmp_path: Path, extra: str
) -> None:
    names, others = OFFERS[extra]
    environment.install(extra, *others)
    with ExitStack() as servers:
        urls = {}
        if "emulated_table" in names:
            engine = servers.enter_context(serving(tmp_path, command="dynamo"))
            urls["endpoint"] = engine.url
        if "queue" in names:
            urls["redis"] = servers.enter_context(real(RedisServer)).url
        said = use(environment, tmp_path, *names, **urls)
    assert said == dict.fromkeys(names, "ok")


def test_a_redis_client_without_a_server_names_the_extra_with_both(
    environment: Environment, tmp_path: Path
) -> None:
    environment.install("redis")
    assert EXTRA.findall(use(environment, tmp_path, "embedded")["embedded"]) == ["local"]


@pytest.mark.full("one extra is installed in plain runs, and the README's")
def test_the_extra_server_is_enough_for_the_commands(
    environment: Environment, tmp_path: Path
) -> None:
    environment.install("server")
    assert "coordinator" in environment.run("heatsink", "--help", folder=tmp_path).stdout
    with started(environment, tmp_path, "serve") as server:
        conversation = f"{server.url}/v1/conversations/conv/messages"
        assert httpx.post(conversation, json={"body": "hey"}, timeout=RUN_S).json()["id"]
        assert "<html" in httpx.get(server.url, timeout=RUN_S).text
    store = next(tmp_path.rglob("*.db"))
    checked = environment.run("heatsink", "fsck", f"sqlite:///{store}", folder=tmp_path)
    assert "every row is where its layout puts it" in checked.stdout
    said = use(environment, tmp_path, "tracing_flag", "aws")
    assert [EXTRA.findall(text) for text in said.values()] == [["otel"], ["aws"]]


def test_the_extra_local_is_enough_for_dynamo(environment: Environment, tmp_path: Path) -> None:
    environment.install("local")
    with started(environment, tmp_path, "dynamo") as engine:
        answer = httpx.post(engine.url, content=b"{}", headers=LIST_TABLES, timeout=RUN_S)
        assert answer.json() == {"TableNames": []}
        said = use(environment, tmp_path, "emulated_table", endpoint=engine.url)
        assert said == {"emulated_table": "ok"}
