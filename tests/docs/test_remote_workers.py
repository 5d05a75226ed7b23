"""The worker of docs/how-to/remote-workers.md, run with the handlers of that page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx

from tests.nodejs import NODE
from tests.processes import serving
from tests.waiting import until

from .pages import DOCS, blocks

EXAMPLE = DOCS.parent / "examples" / "node_worker"
LINES_MAX = 150


def test_the_reference_worker_is_short() -> None:
    assert len((EXAMPLE / "worker.mjs").read_text().splitlines()) <= LINES_MAX


def test_the_handlers_of_the_page_run(tmp_path: Path) -> None:
    [handlers] = [
        each for each in blocks(DOCS / "how-to" / "remote-workers.md") if each.language == "js"
    ]
    assert handlers.text.strip() in (EXAMPLE / "handlers.mjs").read_text()
    shutil.copy(EXAMPLE / "worker.mjs", tmp_path)
    (tmp_path / "handlers.mjs").write_text(handlers.text)
    tokens = ("--token", "operate:operator-1", "--token", "work:worker-1")
    with serving(tmp_path, "--store", "memory://", *tokens) as served:
        about = {"HEATSINK_SERVER": served.url, "HEATSINK_TOKEN": "worker-1"}
        command = [NODE, "worker.mjs", "./handlers.mjs"]
        worker = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **about})
        try:
            headers = {"authorization": "Bearer operator-1"}
            with httpx.Client(base_url=served.url, headers=headers) as api:
                items = [{"n": 1}, {"n": "two"}, {"n": 3}]
                query = {"results": "keep"}
                batch = api.post("/v1/bulk/double", params=query, json=items).json()["id"]
                until(lambda: api.get(f"/v1/bulk/{batch}").json()["state"] == "failed")
                results = api.get(f"/v1/bulk/{batch}/results").text.splitlines()
                [failure] = api.get(f"/v1/bulk/{batch}/failures").text.splitlines()
            worker.terminate()
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.wait()
    assert [json.loads(line) for line in results] == [
        {"index": 0, "value": {"doubled": 2, "attempt": 1}},
        {"index": 2, "value": {"doubled": 6, "attempt": 1}},
    ]
    assert json.loads(failure)["reason"] == "n must be a number"
