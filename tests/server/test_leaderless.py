"""Both coordinators are killed: every command says so, instead of naming the dead."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

import heatsink
from heatsink.cli import main
from heatsink.server.running import noting_signals, until_signal
from tests.processes import Served, command_line, serving
from tests.waiting import until

PATIENCE_S = 60
MYAPP = "from heatsink.bulk import Actions\nactions = Actions()\nactions.action('nap')(print)\n"


def run(*arguments: str, **environment: str) -> Result:
    cleared: dict[str, str | None] = dict.fromkeys(("HEATSINK_SERVER", "HEATSINK_TOKEN"))
    return CliRunner().invoke(main, arguments, env={**cleared, **environment})


@pytest.fixture(scope="module")
def widowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    """A server that does not coordinate, whose two coordinators were killed, and its store."""
    folder = tmp_path_factory.mktemp("widowed")
    store = f"sqlite:///{folder}/x.db"
    with ExitStack() as stack:
        flags = ("--store", store, "--no-coordinator", "--no-worker")
        served = stack.enter_context(serving(folder, *flags))
        coordinators = [
            stack.enter_context(
                serving(folder, "--store", store, "--name", name, command="coordinator")
            )
            for name in ("c1", "c2")
        ]
        until(lambda: httpx.get(served.url + "/v1/status").json()["leader"])
        assert "in force within a second" in ask(served, "pin", "led", "4", "--reason", "x")
        until(lambda: "led: 4 buckets" in ask(served, "explain", "led"))
        assert "leader" in ask(served, "doctor")
        assert "no leader" not in ask(served, "doctor") + run("doctor", "--store", store).stdout
        for coordinator in coordinators:
            os.kill(coordinator.process.pid, signal.SIGKILL)
            coordinator.wait()
        until(lambda: httpx.get(served.url + "/v1/status").json()["nobody_leads"])
        yield served, store


def ask(served: Served, *arguments: str) -> str:
    result = run(*arguments, HEATSINK_SERVER=served.url, COLUMNS="300")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.timeout(180)
def test_the_doctor_names_no_dead_leader(widowed: tuple[Served, str]) -> None:
    served, store = widowed
    for said in (run("doctor", "--store", store, COLUMNS="300").stdout, ask(served, "doctor")):
        (line,) = [line for line in said.splitlines() if " leader " in line]
        assert line.split()[0] == "warning"
        assert "no leader since 2" in line
        assert "the lease of c" in line
        assert "start `heatsink coordinator` or `heatsink serve`" in said


def test_explain_and_hot_do_not_send_to_the_dead(widowed: tuple[Served, str]) -> None:
    served, _ = widowed
    for said in (ask(served, "explain", "some"), ask(served, "hot")):
        assert "no leader since 2" in said
        assert "ask the leader" not in said
        assert "too cold to be reported" not in said
        assert "No key is hot" not in said


def test_a_pin_says_that_it_is_not_in_force(widowed: tuple[Served, str]) -> None:
    served, _ = widowed
    said = ask(served, "pin", "big", "4", "--reason", "launch")
    assert said.startswith("big: pinned to 4 buckets; not in force yet: no leader since 2")
    assert "start `heatsink coordinator`" in said
    assert "in force within" not in said
    explained = ask(served, "explain", "big")
    assert explained.startswith("big: 1 bucket now\n")
    assert "pinned to 4: launch; not in force yet" in explained
    assert "no leader since" in ask(served, "unpin", "big")


def test_a_pinned_cold_key_is_not_hot(widowed: tuple[Served, str]) -> None:
    served, _ = widowed
    assert ask(served, "explain", "led").startswith("led: 4 buckets now (pinned)")


def test_machines_are_told_too(widowed: tuple[Served, str]) -> None:
    served, _ = widowed
    status = httpx.get(served.url + "/v1/status").json()
    assert (status["leads"], status["leader"], status["ready"]) == (False, "", True)
    for path in ("/v1/heat", "/v1/keys/some"):
        answer = httpx.get(served.url + path).json()
        assert (answer["leader"], answer["unreported_s"]) == ("", None)
        assert answer["nobody_leads"].startswith("no leader since 2")
    (line,) = [
        line
        for line in httpx.get(served.url + "/metrics").text.splitlines()
        if line.startswith("heatsink_leaderless_s ")
    ]
    assert float(line.split()[1]) > 0
    assert "has seen no leader for" in ask(served, "top", "--once")


def test_the_doctor_asks_the_server_in_the_environment_unless_a_flag_says_otherwise(
    widowed: tuple[Served, str], tmp_path: Path
) -> None:
    served, store = widowed
    found = json.loads(run("doctor", "--json", HEATSINK_SERVER=served.url).stdout)
    assert [one["what"] for one in found] == ["server", "store", "leader", "queue"]
    assert served.url in found[0]["detail"]
    found = json.loads(run("doctor", "--json", "--store", store, HEATSINK_SERVER="http://x").stdout)
    assert found[0]["what"] == "store"
    gone = run("doctor", "--json", HEATSINK_SERVER="http://127.0.0.1:1")
    assert gone.exit_code == 1
    (one,) = json.loads(gone.stdout)
    assert (one["what"], one["state"]) == ("server", "wrong")
    assert "no server answers at http://127.0.0.1:1" in one["detail"]
    data = run("doctor", "--json", "--data", str(tmp_path / "none"), HEATSINK_SERVER=served.url)
    assert json.loads(data.stdout)[0]["what"] == "data"


# -- told to end while it starts -------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.full("commands treat both signals alike")),
    ],
)
@pytest.mark.parametrize("name", ["coordinator", "serve", "worker"])
def test_a_process_told_to_end_while_it_starts_ends_cleanly(
    tmp_path: Path, name: str, number: signal.Signals
) -> None:
    """Its store takes the connection and does not answer, as one that is overloaded does."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        flags = ["--port", "0", "--store", f"dynamodb://messages?endpoint=http://{address}"]
        if name == "worker":
            (tmp_path / "myapp.py").write_text(MYAPP)
            flags = ["myapp:actions", "--queue", f"redis://{address}"]
        command = command_line(name, *flags)
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        try:
            silent.settimeout(PATIENCE_S)
            connection, _ = silent.accept()  # it starts
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE_S)
            connection.close()
        finally:
            process.kill()
            process.wait()
    interrupted = number == signal.SIGINT and name != "coordinator"
    assert process.returncode == (130 if interrupted else 0), said
    assert "Traceback" not in said
    told = [json.loads(line)["event"] for line in said.splitlines()]
    assert told == ([] if name == "worker" else ["stopped"])


async def test_a_coordinator_that_leads_before_it_has_started_gives_the_lease_back(
    tmp_path: Path,
) -> None:
    """It waits for its queue while its other half leads already."""
    store = f"sqlite:///{tmp_path}/x.db"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        queue = f"redis://127.0.0.1:{silent.getsockname()[1]}?timeout_s=10"
        flags = ("--store", store, "--queue", queue, "--port", "0")
        command = command_line("coordinator", *flags)
        async with heatsink.connect(store, coordinate=False) as hs:
            process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=PIPE)
            while not (await hs.leadership()).leader:
                await asyncio.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
            await hs.parts.registry.renew()
            assert hs.parts.registry.meta.leader == "", "it was given back"
    assert process.returncode == 0, said
    assert b"Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_there_is_an_event_loop_ends_it_too(number: signal.Signals) -> None:
    async def start(noted: Sequence[int]) -> None:
        with until_signal(noted) as ending:
            await asyncio.sleep(PATIENCE_S)
        assert ending.cancelled

    with noting_signals() as noted:
        os.kill(os.getpid(), number)
        asyncio.run(start(noted))
    assert noted == [number]
