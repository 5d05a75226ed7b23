"""Engines to compare: ours in a thread, ministack in an environment of its own, others by URL."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heatsink.emulator.settings import EngineSettings
from heatsink.stores.embedded import free_port
from heatsink.testing.dynamodb import LocalDynamoDB

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / ".tools"
MINISTACK = TOOLS / "ministack-venv"
REQUIREMENTS = Path(__file__).with_name("ministack.txt")
OTHER_URL = "HEATSINK_DYNAMODB_URL"
START_S = 30.0
UNLIMITED = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
COMMANDS = (
    ("uv", "venv", "--quiet", "--clear", "--python", sys.executable, MINISTACK),
    (
        *("uv", "pip", "install", "--quiet", "--require-hashes"),
        *("--python", MINISTACK / "bin" / "python", "-r", REQUIREMENTS),
    ),
)


def names() -> list[object]:
    """As parameters of a fixture."""
    theirs = pytest.param("ministack", marks=pytest.mark.full("the contract, on another engine"))
    return ["ours", theirs, *(["other"] if os.environ.get(OTHER_URL) else [])]


@contextmanager
def running(name: str) -> Iterator[str]:
    if name == "ours":
        with ours(UNLIMITED) as url:
            yield url
    elif name == "ministack":
        with ministack() as url:
            yield url
    else:
        yield os.environ[OTHER_URL]


@contextmanager
def ours(settings: EngineSettings) -> Iterator[str]:
    """In a thread with its own loop, so that blocking clients can talk to it."""
    with LocalDynamoDB(settings) as dynamodb:
        yield dynamodb.url


@contextmanager
def ministack() -> Iterator[str]:
    _get_ministack()
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "GATEWAY_PORT": str(port),
        "SERVICES": "dynamodb",
        "LOG_LEVEL": "ERROR",
    }
    process = subprocess.Popen(
        [MINISTACK / "bin" / "ministack"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_S)


def _get_ministack() -> None:
    made_from = MINISTACK / "made-from"
    wanted = REQUIREMENTS.read_text()
    if made_from.exists() and made_from.read_text() == wanted:
        return
    if not os.environ.get("CI"):
        pytest.skip("ministack is not there: CI=true ./dev test tests/emulator/contract gets it")
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "ministack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made_from.exists() or made_from.read_text() != wanted:
            for command in COMMANDS:
                subprocess.run([TOOLS / "bin" / command[0], *command[1:]], check=True)
            made_from.write_text(wanted)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if process.poll() is not None:
            pytest.fail(f"ministack ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("ministack did not start")
