"""The shop in examples/django_shop: Django's own commands, a worker and a private Redis."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


PROBE = """
import os
from asgiref.sync import sync_to_async
from django.db import connection
from heatsink.bulk import Actions
from shop.models import Order

actions = Actions()


def used():
    was_open = connection.connection is not None
    Order.objects.count()
    connection.close_at = 0  # from now on it is too old
    return [was_open, os.getpid()]


@actions.action("plain")
def plain(item, context):
    return used()


@actions.action("later")
async def later(item, context):
    return await sync_to_async(used)()


@actions.action("computed", process=True)
def computed(item, context):
    return used()
"""
PROBE_SETTINGS = """
from shop.settings import *
HEATSINK = {**HEATSINK, "actions": "probe:actions"}
"""
PROBED = """
import json, django
django.setup()
from heatsink.contrib.django import client
found = {}
for action in ("plain", "later", "computed"):
    batch = client().bulk.submit(action, range(5), results="keep")
    client().bulk.wait(batch.id, timeout_s=60)
    found[action] = [each.value for each in client().bulk.results(batch.id)]
print(json.dumps(found))
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


def played(shop: dict[str, str], script: str, **more: str) -> Any:
    ran = subprocess.run([sys.executable, "-c", script], **at(shop, **more), check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@contextmanager
def working(run: dict[str, Any], log: Path, *flags: str) -> Iterator[None]:
    """Run `manage.py heatsink_worker`, which must end without an error."""
    where = {name: value for name, value in run.items() if name in ("cwd", "env")}
    command = [sys.executable, "manage.py", "heatsink_worker", "--workers", "2", *flags]
    with log.open("wb") as output:
        worker = subprocess.Popen(command, **where, stdout=output, stderr=output)
    try:
        until(lambda: "(Ctrl-C stops it)" in log.read_text())
        yield
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        assert "Traceback" not in log.read_text()
    finally:
        worker.kill()
        worker.wait()


def test_an_order_is_packed_after_its_commit_and_a_refused_one_is_not(
    shop: dict[str, str], tmp_path: Path
) -> None:
    with working(at(shop), tmp_path / "worker.log"):
        seen = played(shop, VISIT)
    assert (seen["placed"], seen["refused"]) == (201, 400)
    assert seen["shown"] == {"lines": 3, "packed": 3, "batch": "done"}
    assert seen["batches"] == ["ada"], "a batch of an order that was rolled back"
    assert (seen["alone"], seen["failure"]) == ("mine", "there is no line 987654")


def test_a_handler_of_any_kind_finds_no_connection_that_is_too_old(
    shop: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    (tmp_path / "probe_settings.py").write_text(PROBE_SETTINGS)
    paths = os.pathsep.join([str(tmp_path), str(SHOP)])
    more = {"PYTHONPATH": paths, "DJANGO_SETTINGS_MODULE": "probe_settings"}
    with real(lambda: RedisServer(append_only=True)) as queue:
        more["SHOP_QUEUE"] = queue.url
        one = ("--handler-processes", "1", "--concurrency", "1")
        with working(at(shop, **more), tmp_path / "worker.log", *one):
            found = played(shop, PROBED, **more)
    assert {action: [is_open for is_open, _ in runs] for action, runs in found.items()} == {
        action: [False] * 5 for action in ("plain", "later", "computed")
    }
    processes = {action: {process for _, process in runs} for action, runs in found.items()}
    assert processes["plain"] == processes["later"]
    assert len(processes["computed"]) == 1
    assert processes["computed"] != processes["plain"]


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
