"""`heatsink timelines`: an operator's choice of push or pull, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from heatsink.cli import main
from tests.processes import Served, serving
from tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    flags = ("--store", f"sqlite:///{folder}/data.db", "--queue", f"embedded:///{folder}/queue")
    with serving(folder, *flags) as served:
        yield served


def run(server: Served, *arguments: str) -> Result:
    flags = ("--server", server.url)
    return CliRunner().invoke(main, [*arguments, *flags], env={"COLUMNS": "200"})


def answered(server: Served, *arguments: str) -> Any:
    result = run(server, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def post(server: Served, author: str) -> str:
    answer = httpx.post(f"{server.url}/v1/timelines/{author}/posts", json={"body": "hi"})
    answer.raise_for_status()
    mode: str = answer.json()["mode"]
    return mode


def test_a_pinned_author_is_pulled_from_the_next_post_on(server: Served) -> None:
    until(lambda: answered(server, "hot")["leads"])
    assert post(server, "ada") == "push"
    done = run(server, "timelines", "pin", "ada", "pull", "--reason", "on television")
    assert done.exit_code == 0, done.stderr
    assert post(server, "ada") == "pull"
    assert "pinned: on television" in run(server, "timelines", "explain", "ada").stdout
    assert "on television" in run(server, "timelines", "list").stdout
    assert run(server, "timelines", "unpin", "ada").exit_code == 0
    until(lambda: post(server, "ada") == "push")


def test_a_lower_threshold_holds_for_the_first_post_after_it(server: Served) -> None:
    for fan in range(3):
        body = {"author": "bob"}
        httpx.post(f"{server.url}/v1/timelines/fan{fan}/follows", json=body).raise_for_status()
    assert post(server, "bob") == "push"
    lower = ("settings", "set", "timelines.threshold", "3", "--reason", "small homes")
    assert answered(server, *lower)["value"] == 3
    until(lambda: post(server, "bob") == "pull")
    assert "3 or more are pulled" in run(server, "timelines", "explain", "bob").stdout
