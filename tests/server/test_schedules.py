"""`heatsink schedules` and `/v1/schedules`, through a server and through the store alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from heatsink import connect
from heatsink.bulk import Actions
from heatsink.cli import main
from heatsink.errors import InvalidSetting
from tests.processes import Served, serving
from tests.waiting import soon, until

ACTIONS = """
from heatsink.bulk import Actions

actions = Actions()


@actions.action("count")
async def count(item, context):
    return None
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/fleet.db"


@pytest.fixture(scope="module")
def server(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "scheduled_app.py").write_text(ACTIONS)
    with serving(folder, "--store", store, "--actions", "scheduled_app:actions") as served:
        yield served


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments], env={"COLUMNS": "200"})


def answered(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_server_starts_what_is_scheduled(server: Served) -> None:
    where = ("--server", server.url)
    order = ("--every", "1", "--items", "[1, 2]", "--tenant", "acme", "--missed", "once")
    line = answered("schedules", "set", "tick", "count", *order, *where)
    assert (line["items"], line["every_s"], line["version"], line["missed"]) == (2, 1, 1, "once")
    assert "@" in line["by"]

    def batches() -> list[Any]:
        found = answered("bulk", "list", "--tenant", "acme", *where)
        return [batch for batch in found if batch["state"] == "done"]

    until(lambda: len(batches()) >= 2)
    ids = {batch["id"] for batch in batches()}
    assert all(id.startswith("schedule:tick:1:20") and id.endswith("Z") for id in ids)
    assert run("schedules", "pause", "tick", *where).stdout == "tick: paused\n"
    (line,) = answered("schedules", "list", *where)
    assert (line["paused"], line["next"], line["version"]) == (True, None, 2)
    assert line["last_batch"].startswith("schedule:tick:1:")
    narrow = CliRunner().invoke(main, ["schedules", "list", *where], env={"COLUMNS": "60"})
    assert line["last_batch"] in narrow.stdout  # no terminal cuts it
    answered("schedules", "resume", "tick", *where)
    until(lambda: any(":tick:3:" in batch["id"] for batch in batches()))
    answered("schedules", "remove", "tick", *where)
    assert "There are no schedules." in run("schedules", "list", *where).stdout
    gone = run("schedules", "remove", "tick", *where)
    assert gone.exit_code != 0
    assert "there is no schedule 'tick'" in gone.stderr


@pytest.mark.server("the queue of a store in a file starts a Redis")
@pytest.mark.parametrize("through", ["server", "store"])
def test_a_changed_schedule_keeps_what_was_not_given(
    request: pytest.FixtureRequest, tmp_path: Path, through: str
) -> None:
    where = ("--store", f"sqlite:///{tmp_path}/own.db")
    if through == "server":
        where = ("--server", request.getfixturevalue("server").url)
    kept = ("--items", "[1, 2]", "--tenant", "acme", "--missed", "once", "--priority", "2")
    answered("schedules", "set", "kept", "count", "--every", "3600", *kept, *where)
    answered("schedules", "pause", "kept", *where)
    cron = ("--cron", "0 9 * * *", "--zone", "Europe/Berlin")
    line = answered("schedules", "set", "kept", "count", *cron, *where)
    assert (line["items"], line["tenant"], line["missed"], line["priority"]) == (
        2,
        "acme",
        "once",
        2,
    )
    assert (line["every_s"], line["cron"], line["zone"]) == (0, "0 9 * * *", "Europe/Berlin")
    assert line["paused"], "only resume ends a pause"
    line = answered("schedules", "set", "kept", "count", "--items-from", "count", *where)
    assert (line["items"], line["items_from"], line["zone"]) == (None, "count", "Europe/Berlin")
    line = answered("schedules", "set", "kept", "count", "--every", "60", "--replace", *where)
    assert (line["items_from"], line["tenant"], line["missed"]) == ("", "default", "skip")
    answered("schedules", "remove", "kept", *where)


@pytest.mark.server("the client opens an embedded queue")
def test_a_schedule_is_set_through_the_store_alone(tmp_path: Path) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/own.db")
    when = ("--cron", "0 9 * * MON-FRI", "--zone", "Europe/Berlin")
    done = run("schedules", "set", "report", "count", *when, *store)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("report runs count (0 9 * * MON-FRI Europe/Berlin), next 20")
    listed = run("schedules", "list", *store).stdout
    assert "0 9 * * MON-FRI Europe/Berlin" in listed
    assert answered("schedules", "list", *store)[0]["next"][:16].replace("T", " ") in listed


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (("--cron", "0 9 * *"), "it needs 5 fields"),
        (("--every", "60", "--items", "[1"), "--items must be a JSON array"),
        ((), "a schedule needs every or cron"),
    ],
)
def test_a_wrong_schedule_is_refused(server: Served, order: tuple[str, ...], why: str) -> None:
    refused = run("schedules", "set", "wrong", "count", *order, "--server", server.url)
    assert refused.exit_code == 2
    assert why in refused.stderr


async def test_an_action_that_no_worker_has_announced_is_refused() -> None:
    actions = Actions()
    actions.action("count")(lambda *_: None)
    async with connect("memory://") as hs:
        await hs.schedules.set("early", "tagg", every=3600)  # no worker has announced any action
        worker = hs.worker(actions, workers=1)
        running = asyncio.ensure_future(worker.run())
        await soon(lambda: worker.is_ready)
        for action, items_from in (("tagg", ""), ("count", "tagg")):
            with pytest.raises(InvalidSetting, match="action 'tagg' is unknown: workers have"):
                await hs.schedules.set("late", action, every=3600, items_from=items_from)
        await hs.schedules.set("good", "count", every=3600)
        assert [one.schedule.name for one in hs.schedules.all()] == ["early", "good"]
        worker.stop()
        await running
