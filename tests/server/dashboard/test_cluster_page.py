"""The page of a watched cluster, while a real one under load is balanced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from redis.asyncio import RedisCluster as Client

from heatsink.cluster.slots import SLOTS
from heatsink.testing.redis import RedisCluster
from tests.accessibility import violations
from tests.cluster.clients import ZipfLoad, zipf_keys
from tests.processes import serving
from tests.servers import real

from .conftest import SHOTS, Visit, expect_to_fit
from .test_screenshots import LOOKS

pytestmark = pytest.mark.timeout(180)
STATISTICS = {"cluster-slot-stats-enabled": "yes"}


class Loading(Thread):
    """Keys with a Zipf distribution, the hottest on the first node, until `over`."""

    def __init__(self, cluster: RedisCluster) -> None:
        super().__init__(daemon=True)
        self._port = cluster.masters[0].port
        self.over = Event()

    def run(self) -> None:
        asyncio.run(self._load())

    async def _load(self) -> None:
        rng = Random(3)
        async with Client(host="127.0.0.1", port=self._port) as client:
            load = ZipfLoad(client, zipf_keys(rng, range(SLOTS // 3))[:300], rng)
            await load.fill()
            stop = asyncio.Event()
            running = asyncio.ensure_future(load.run(150.0, stop))
            while not self.over.is_set():
                await asyncio.sleep(0.1)
            stop.set()
            await running


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    with real(lambda: RedisCluster(options=STATISTICS)) as cluster:
        flags = ("--cluster", cluster.url, "--balance-cluster", "--no-worker")
        loading = Loading(cluster)
        loading.start()
        with serving(folder, "--data", str(folder), *flags) as served:
            change = {"value": 0.0, "reason": "little load"}
            httpx.put(f"{served.url}/v1/settings/slots.idle", json=change).raise_for_status()
            yield f"{served.url}/cluster"
        loading.over.set()
        loading.join()


def painted(page: Page) -> Any:
    """How many different colours the first map has."""
    return page.evaluate(
        """() => {
            const map = document.querySelector(".slots");
            const bytes = map.getContext("2d").getImageData(0, 0, map.width, map.height).data;
            const seen = new Set();
            for (let at = 0; at < bytes.length; at += 4) seen.add(bytes.slice(at, at + 3).join());
            return seen.size;
        }"""
    )


@pytest.mark.full(
    "a cluster, a server, load and a browser; plain runs see the page without a cluster"
)
@pytest.mark.parametrize("look", LOOKS)
def test_slots_are_drawn_by_node_before_and_now(url: str, visit: Visit, look: str) -> None:
    page = visit(url, **LOOKS[look])
    expect(page.get_by_role("img", name="Heat of the slots of")).to_have_count(6, timeout=60_000)
    assert painted(page) > 3
    expect(page.get_by_text("takes", exact=False).first).to_be_visible(timeout=90_000)
    expect_to_fit(page, "cluster")
    assert violations(page) == []
    page.screenshot(path=SHOTS / f"watched-cluster-{look}.png", full_page=True)
