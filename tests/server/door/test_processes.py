"""Several processes of the door on one port: shared, restarted and replaced."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from click.testing import CliRunner

import heatsink
from heatsink.cli import main
from heatsink.door.keys import TAG, subject_in
from heatsink.testing.dynamodb import LocalDynamoDB
from heatsink.testing.redis import RedisServer
from tests.adoption import complete_adoption, wait_until_spread
from tests.processes import Served
from tests.server.door.conftest import CHAT, a_door, client_of, make_table
from tests.servers import real
from tests.waiting import until

WRITERS = 3
SOME = 15  # items of each writer
RETRIES = Config(retries={"total_max_attempts": 5, "mode": "standard"})


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
        client: Any = client_of(door.url, config=RETRIES)
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


class Writer:
    """A program that puts items into one room, one after the other."""

    def __init__(self, url: str, number: int) -> None:
        self.client: Any = client_of(url, config=RETRIES)
        self.number = number
        self.tried = 0
        self.done: set[str] = set()
        """The sort keys of the items that were acknowledged."""

    def run(self, stopped: Event) -> None:
        while not stopped.is_set():
            self.tried += 1
            at = f"MSG#{int(time.time() * 1000)}#{self.number}-{self.tried:06}"
            try:
                self.client.put_item(TableName="chat", Item={"room": {"S": "r1"}, "at": {"S": at}})
            except (BotoCoreError, ClientError):
                continue  # it may have been put
            self.done.add(at)


@contextmanager
def writers_at(url: str) -> Iterator[list[Writer]]:
    """Let some writers write during the block."""
    writers = [Writer(url, number) for number in range(WRITERS)]
    stopped = Event()
    with ThreadPoolExecutor(WRITERS) as pool:
        running = [pool.submit(one.run, stopped) for one in writers]
        try:
            yield writers
        finally:
            stopped.set()
        for one in running:
            one.result()


def until_each_has_written(writers: list[Writer]) -> None:
    begun = [len(one.done) for one in writers]
    until(lambda: all(len(one.done) >= was + SOME for one, was in zip(writers, begun, strict=True)))


def read_room(url: str) -> Counter[str]:
    """Read all pages of the room. Each page has a connection, and perhaps a process, of its own."""
    found = Counter[str]()
    given: dict[str, Any] = {
        "TableName": "chat",
        "KeyConditionExpression": "room = :r",
        "ExpressionAttributeValues": {":r": {"S": "r1"}},
        "ConsistentRead": True,
        "Limit": 200,
    }
    while True:
        page: Any = client_of(url, config=RETRIES).query(**given)
        sorts = [item["at"]["S"] for item in page["Items"]]
        assert sorts == sorted(sorts)
        found.update(sorts)
        if "LastEvaluatedKey" not in page:
            return found
        given["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def test_processes_that_share_a_spread_table_lose_no_item(
    emulator: LocalDynamoDB, tmp_path: Path
) -> None:
    (tmp_path / "tables.toml").write_text(CHAT)
    behind = emulator.client()
    make_table(behind, "chat")
    registry = f"dynamodb://registry?endpoint={emulator.url}"
    assert CliRunner().invoke(main, ["table", "create", registry]).exit_code == 0
    with heatsink.connect_sync(registry):  # the first client makes the registry
        pass
    complete_adoption(registry, "chat")
    with real(RedisServer) as redis:
        flags = ("--tables", "tables.toml", "--store", registry, "--news", redis.url)
        with a_door(tmp_path, emulator.url, "--processes", "2", *flags) as door:
            with writers_at(door.url) as writers:
                wait_until_spread(registry, subject_in("chat", "r1"), 4, 0)
                until_each_has_written(writers)
                first = children(door)
                os.kill(min(first), signal.SIGKILL)
                until(lambda: len(children(door)) == 2 and children(door) != first)
                until_each_has_written(writers)
                second = children(door)
                door.process.send_signal(signal.SIGHUP)
                until(lambda: len(children(door)) == 2 and not children(door) & second)
                until_each_has_written(writers)
            done = set().union(*(one.done for one in writers))
            found = read_room(door.url)
    assert set(found.values()) == {1}
    assert done <= set(found)
    assert len(found) <= sum(one.tried for one in writers)
    used = {item["room"]["S"] for item in behind.scan(TableName="chat")["Items"]}
    assert len([name for name in used if TAG in name]) > 1
