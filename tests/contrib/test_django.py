"""The shop in examples/django_shop: Django's own commands, a worker and a private Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heatsink.testing.redis import RedisServer
from tests.servers import real
from tests.waiting import until

SHOP = Path(__file__).resolve().parents[2] / "examples" / "django_shop"
pytestmark = pytest.mark.timeout(180)

VISIT = """
import json, django
django.setup()
from django.db import transaction
from django.test import Client
from heatsink.contrib.django import client, submit_on_commit
web = Client()
placed = web.post("/orders/", {"customer": "ada", "lines": 3})
order = placed.json()
client().bulk.wait(order["batch"], timeout_s=60)
shown = web.get(f"/orders/{order['order']}/").json()
refused = web.post("/orders/", {"customer": "bob", "lines": 200})
batches = [batch.tenant for batch in client().bulk.list()]
alone = submit_on_commit("pack", [987654], tenant="nobody", id="mine")
failed = client().bulk.wait(alone, timeout_s=60)
[failure] = client().bulk.failures(alone)
print(json.dumps({
    "placed": placed.status_code, "shown": shown, "refused": refused.status_code,
    "batches": batches, "alone": alone, "failure": failure.reason,
}))
"""

MISTAKES = """
import json, django
django.setup()
from django.test import override_settings
from heatsink.contrib.django import client
from heatsink.errors import HeatsinkError
said = []
for wrong in (None, {"url": "nonsense://x"}, {"urll": "memory://"}):
    with override_settings(HEATSINK=wrong):
        try:
            client()
        except HeatsinkError as error:
            said.append(str(error))
with override_settings(HEATSINK={}):
    client().log.append("conv", b"hello")
    first = client()
with override_settings(HEATSINK={"url": "memory://"}):
    said.append("a new client" if client() is not first else "the old client")
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with real(lambda: RedisServer(append_only=True)) as server:
        yield server


@pytest.fixture(scope="module")
def shop(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("shop")
    shop = {"SHOP_FOLDER": str(folder), "SHOP_QUEUE": redis.url}
    ran = subprocess.run([sys.executable, "manage.py", "migrate"], **at(shop), check=False)
    assert ran.returncode == 0, ran.stderr
    return shop


def at(shop: dict[str, str], **more: str) -> dict[str, Any]:
    named = {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONUNBUFFERED": "1"}
    return {
        "cwd": SHOP,
        "env": {**os.environ, **named, **shop, **more},
        "text": True,
        "capture_output": True,
    }


def played(shop: dict[str, str], script: str) -> Any:
    ran = subprocess.run([sys.executable, "-c", script], **at(shop), check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_an_order_is_packed_after_its_commit_and_a_refused_one_is_not(
    shop: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    where = {name: value for name, value in at(shop).items() if name in ("cwd", "env")}
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "manage.py", "heatsink_worker", "--workers", "2"],
            **where,
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: "runs pack (Ctrl-C stops it)" in log.read_text())
        seen = played(shop, VISIT)
        assert (seen["placed"], seen["refused"]) == (201, 400)
        assert seen["shown"] == {"lines": 3, "packed": 3, "batch": "done"}
        assert seen["batches"] == ["ada"], "a batch of an order that was rolled back"
        assert (seen["alone"], seen["failure"]) == ("mine", "there is no line 987654")
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        assert "Traceback" not in log.read_text()
    finally:
        worker.kill()
        worker.wait()


def test_mistakes_in_the_settings_are_named(shop: dict[str, str]) -> None:
    missing, url, name, replaced = played(shop, MISTAKES)
    assert "settings.HEATSINK must be a dict such as" in missing
    assert "nonsense" in url
    assert "urll" in name
    assert replaced == "a new client"


def test_a_worker_without_a_queue_says_what_to_add(shop: dict[str, str]) -> None:
    command = [sys.executable, "manage.py", "heatsink_worker", "--settings", "shop.settings"]
    ran = subprocess.run(command, **at(shop, SHOP_QUEUE=""), check=False)
    assert ran.returncode == 2
    [line] = ran.stderr.splitlines()
    assert 'settings.HEATSINK["queue"] must name the Redis of the queue' in line
