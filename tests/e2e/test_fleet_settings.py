"""A fleet that is configured in one place, through the public surface, on real servers.

Application servers that never lead, two coordinators, a Redis for news, and a DynamoDB engine. All
settings are set by the command line on the data store. The leader is killed in the middle.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from heatsink import connect
from heatsink.cli import main
from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import until

from .test_fleet import COORDINATORS, Fleet, verify

TEN = pytest.mark.full("ten application processes")


class SettingsFleet(Fleet):
    def __init__(self, redis: RedisServer, folder: Path, apps: int) -> None:
        super().__init__(redis, folder)
        self.folder = folder
        self.apps = [f"app-{number}" for number in range(apps)]
        self._spawner: subprocess.Popen[bytes] | None = None

    def start_apps(self) -> None:
        module = [sys.executable, "-m", "tests.e2e.apps"]
        where = [str(self.folder), self.store, self.redis.url, str(len(self.apps))]
        self._spawner = subprocess.Popen([*module, *where], start_new_session=True)
        until(lambda: all(self._follows(app, " (default)") for app in self.apps), "all are open")

    def kill_apps(self) -> None:
        if self._spawner is not None:
            os.killpg(self._spawner.pid, signal.SIGKILL)
            self._spawner.wait()
            self._spawner = None

    def run(self, *words: str) -> Any:
        """What a command answers about the deployment."""
        flags = ["--store", self.store, "--json"]
        result = CliRunner().invoke(main, [*words, *flags], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return msgspec.json.decode(result.output)

    def set(self, name: str, value: str, reason: str) -> float:
        """Set it and wait until all applications show it. Returns how long the last one took."""
        self.run("settings", "set", name, value, "--reason", reason)
        set_s, line = time(), f" {name} = {value} (set by "
        until(lambda: all(self._follows(app, line) for app in self.apps), f"all show {line}")
        return max(self._follows(app, line) for app in self.apps) - set_s

    def _follows(self, app: str, line: str) -> float:
        """When the application first showed it; 0 if it has not."""
        file = self.folder / f"{app}.settings"
        lines = file.read_text().splitlines() if file.exists() else []
        return next((float(each.split()[0]) for each in lines if line in each), 0.0)

    def said_once(self, process: str, words: str) -> bool:
        return (self.folder / f"{process}.err").read_text().count(words) == 1

    def buckets_decided(self) -> list[int]:
        lines = self.run("decisions", "--limit", "100")
        subject = {"kind": "key", "name": "conv"}
        ours = (each for each in lines if each["subject"] == subject and each["reason"])
        return [line["value"] for line in ours]


@contextmanager
def configured_fleet(folder: Path, apps: int) -> Iterator[SettingsFleet]:
    with real(RedisServer) as redis:
        fleet = SettingsFleet(redis, folder, apps)
        try:
            fleet.start_engine(latency_ms=0.0)
            for name in COORDINATORS:
                fleet.start_coordinator(name)
            fleet.start_apps()
            yield fleet
        finally:
            fleet.kill_apps()
            for name in list(fleet.processes):
                fleet.kill(name)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("apps", [3, pytest.param(10, marks=TEN)])
def test_a_fleet_follows_settings_and_loses_nothing_when_its_leader_is_killed(
    tmp_path: Path, apps: int, record_property: Callable[[str, object], None]
) -> None:
    with configured_fleet(tmp_path, apps) as fleet:
        took_s = [
            fleet.set("rules.buckets_max", "2", "reads are dear"),
            fleet.set("rules.bucket_units_s", "40", "small partitions"),
        ]
        until(lambda: 2 in fleet.buckets_decided(), "the key is spread", look_s=0.1)
        leader = fleet.leader()
        fleet.kill(leader)
        took_s.append(fleet.set("timelines.threshold", "500", "set while nobody led"))
        took_s.append(fleet.set("rules.buckets_max", "4", "they are not that dear"))
        took_s.append(fleet.set("window_s", "0.5", "see bursts sooner"))
        until(lambda: max(fleet.buckets_decided()) > 2, "the standby spreads it", look_s=0.1)
        (standby,) = [name for name in COORDINATORS if name != leader]
        assert fleet.leads(standby)
        assert fleet.said_once("app-0", "rules.buckets_max=7, but the deployment has 2,")
        assert fleet.said_once(standby, "rules.bucket_units_s=80, but the deployment has 40,")
        assert max(fleet.buckets_decided()) <= 4
        changed = {line["name"]: line for line in fleet.run("settings", "list", "--changed")}
        assert changed["rules.buckets_max"]["value"] == 4
        assert changed["rules.buckets_max"]["reason"] == "they are not that dear"
        fleet.kill_apps()
        fleet.note_acknowledged()
        assert {body.split()[0].decode() for body in fleet.acknowledged} == {*fleet.apps}
        record_property("seconds until the last application followed", took_s)
        asyncio.run(read_back(fleet))


async def read_back(fleet: Fleet) -> None:
    async with connect(fleet.store, coordinate=False) as hs:
        await verify(hs, fleet)
