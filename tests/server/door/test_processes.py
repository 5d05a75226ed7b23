"""Several processes of the door on one port: shared, restarted and replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from botocore.config import Config

from heatsink.testing.dynamodb import LocalDynamoDB
from tests.processes import Served
from tests.server.door.conftest import a_door, client_of
from tests.waiting import until


def children(door: Served) -> set[int]:
    text = Path(f"/proc/{door.process.pid}/task/{door.process.pid}/children").read_text()
    return set(map(int, text.split()))


def test_processes_share_a_port_and_one_that_dies_is_restarted(
    emulator: LocalDynamoDB, tmp_path: Path
) -> None:
    with a_door(tmp_path, emulator.url, "--processes", "2") as door:
        first = children(door)
        assert len(first) == 2
        for _ in range(8):
            client_of(door.url).list_tables()
        os.kill(min(first), signal.SIGKILL)
        until(lambda: len(children(door)) == 2 and children(door) != first)
        for _ in range(8):
            client_of(door.url).list_tables()
    assert not any(Path(f"/proc/{child}").exists() for child in first)


def test_a_replacement_loses_no_request(emulator: LocalDynamoDB, tmp_path: Path) -> None:
    with a_door(tmp_path, emulator.url, "--processes", "2") as door:
        first = children(door)
        retries = Config(retries={"total_max_attempts": 3, "mode": "standard"})
        client: Any = client_of(door.url, config=retries)
        client.list_tables()
        door.process.send_signal(signal.SIGHUP)

        def replaced() -> bool:
            client.list_tables()  # on its kept connection while that lasts, then on another
            return len(children(door)) == 2 and not children(door) & first

        until(replaced)
        assert "restarting" in door.names


def test_a_second_door_may_share_the_port_only_if_both_say_so(
    emulator: LocalDynamoDB, tmp_path: Path
) -> None:
    with a_door(tmp_path, emulator.url, "--share-port") as first:
        port = ("--port", str(first.port))
        with a_door(tmp_path, emulator.url, "--share-port", *port) as second:
            first.ask_to_stop()
            assert first.wait() == 0
            client_of(second.url).list_tables()
