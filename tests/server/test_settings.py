"""`heatsink settings`, through a server and through the store alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main
from tests.processes import Served, serving
from tests.waiting import until


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/fleet.db"


@pytest.fixture(scope="module")
def server(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), "--store", store) as served:
        yield served


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["settings", *arguments], env={"COLUMNS": "200"})


def answered(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_what_the_store_is_told_a_running_server_follows(store: str, server: Served) -> None:
    done = run("set", "rules.buckets_max", "3", "--reason", "reads are dear", "--store", store)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("rules.buckets_max = 3 (set by ")
    until(lambda: answered("get", "rules.buckets_max", "--server", server.url)["value"] == 3)
    line = answered("get", "rules.buckets_max", "--server", server.url)
    assert (line["source"], line["reason"], line["default"]) == ("deployment", "reads are dear", 64)
    assert line["about"].startswith("Maximum number of buckets of one key")
    shown = run("get", "rules.buckets_max", "--store", store).stdout.splitlines()
    assert shown[1] == line["about"]
    listed = run("list", "--changed", "--server", server.url)
    assert "rules.buckets_max" in listed.stdout
    assert "reads are dear" in listed.stdout
    assert "rules.shrink" not in listed.stdout


def test_a_setting_is_set_and_unset_through_a_server(server: Served) -> None:
    where = ("--server", server.url)
    line = answered("set", "rules.shrink", "false", "--reason", "a high-water mark", *where)
    assert (line["value"], line["source"]) == (False, "deployment")
    assert "@" in line["by"]
    line = answered("unset", "rules.shrink", *where)
    assert (line["value"], line["source"]) == (True, "default")
    names = [line["name"] for line in answered("list", *where)]
    assert {"workers.base", "workers.cycles", "timelines.threshold", "near.hot_reads_s"} <= {*names}


@pytest.mark.parametrize("through", ["store", "server"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("get", "rules.bucket_max"), "did you mean 'rules.buckets_max'"),
        (("set", "rules.buckets_max", "many", "--reason", "x"), "must be a whole number"),
        (("set", "rules.buckets_max", "5000", "--reason", "x"), "from 1 to 1,024"),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    arguments: tuple[str, ...], words: str, through: str, store: str, server: Served
) -> None:
    where = ("--store", store) if through == "store" else ("--server", server.url)
    result = run(*arguments, *where)
    assert result.exit_code != 0
    (line,) = result.stderr.strip().splitlines()
    assert words in line


def test_memory_has_no_settings_to_share() -> None:
    result = run("list", "--store", "memory://")
    assert result.exit_code != 0
    assert "memory:// is private to its process" in result.stderr


def test_files_of_a_new_store_are_not_needed(tmp_path: Path) -> None:
    """The first command may found the store, as the first process of a deployment does."""
    url = f"sqlite:///{tmp_path}/new.db"
    founded = run("set", "workers.base", "4", "--reason", "small", "--store", url)
    assert founded.exit_code == 0
    assert f"there was no database {tmp_path}/new.db: a new one is made" in founded.stderr
    assert answered("get", "workers.base", "--store", url)["value"] == 4
